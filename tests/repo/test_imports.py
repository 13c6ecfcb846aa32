# SPDX-License-Identifier: Apache-2.0
"""What importing the packages must not do, each in a process of its own."""

import shutil
import sys
from pathlib import Path

import grimp
import pytest
import torch

from tests import harness

PACKAGES = (
    *("benchmark", "bert4rec", "cuda_ext", "dataspec", "dlrm", "preproc", "recsys"),
    "recsys_recipes",
)
USES_TORCH = (
    *("bert4rec", "benchmark", "cuda_ext", "dlrm", "recsys.models"),
    *("recsys.ratings", "recsys.serve", "recsys.train"),
    "recsys_recipes",
)

NO_TRITON = """
try:
    import triton
except ImportError:
    pass
else:
    raise SystemExit(f"import triton gave {triton}")
"""

USE_TORCH = """
import torch

linear = torch.nn.Linear(2, 2)
torch.optim.SGD(linear.parameters(), lr=0.1).step()
torch.export.export(linear, (torch.ones(1, 2),))
torch.compile(linear, backend="eager")(torch.ones(1, 2))
"""

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys

for package in sys.argv[1:]:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if not module.module_finder.find_spec(module.name).origin.endswith(".py"):
            continue  # a shared library for ctypes
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            raise SystemExit(f"{module.name}: {error}")
"""

OPTIONAL = (
    "apex", "cudf", "duckdb", "fbgemm_gpu", "google", "gradio", "matplotlib", "merlin",
    "nvtabular", "onnx", "onnxruntime", "onnxscript", "polars", "pyspark", "sklearn",
    "tensorboard", "torchrec", "tritonclient",
)  # fmt: skip

BLOCK_OPTIONAL = f"""
import sys

for name in {OPTIONAL!r}:
    sys.modules[name] = None
"""

NO_CUDA = """
torch = sys.modules.get("torch")
if torch is not None and torch.cuda.is_initialized():
    raise SystemExit("CUDA was initialised")
"""


def python(program, *arguments, **options):
    """Runs a program in a folder, which is first on the module path as under `python -m`."""
    return harness.python(
        "-c", program, *arguments, PYTHONSAFEPATH=None, PYTHONPATH=None, **options
    )


def has_compiler():
    """Whether the real Triton compiler is installed; then no folder can pose as it."""
    return python("import triton.language", folder="/", status=None).returncode == 0


@pytest.fixture
def folder_with_triton(tmp_path):
    """A working directory as the repository is: with a folder `triton` of plain files."""
    (tmp_path / "here" / "triton").mkdir(parents=True)
    (tmp_path / "here" / "triton" / "README.md").write_text("How to deploy.\n")
    return tmp_path / "here"


def test_the_triton_folder_does_not_pose_as_the_compiler(folder_with_triton):
    """The guard of one package; the next tests hold that every package has it first."""
    what = "import triton.language" if has_compiler() else NO_TRITON
    python(f"import recsys.train\n{what}", folder=folder_with_triton)


@pytest.mark.release
def test_an_editable_install_hides_the_folder_from_plain_pytorch(folder_with_triton, tmp_path):
    """In an environment with torch and without this project, at first."""
    harness.python("-m", "venv", "--without-pip", tmp_path / "environment")
    environment = tmp_path / "environment" / "bin" / "python"
    (packages,) = tmp_path.glob("environment/lib/python*/site-packages")
    # Only the folder: the .pth files in it, one of which may be the hook, are not run.
    (packages / "all.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")

    def run(*command, folder=folder_with_triton, **options):
        clean = {"PYTHONPATH": None, "PYTHONSAFEPATH": None}
        return harness.run(environment, *command, folder=folder, **clean, **options)

    without = run("-c", USE_TORCH, status=None)
    if not has_compiler():
        assert "module 'triton' has no attribute 'language'" in without.stderr
    sources = tmp_path / "copy"
    skip = shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info", "shared", "__pycache__")
    shutil.copytree(harness.REPOSITORY, sources, ignore=skip)
    install = ("-m", "pip", f"--python={environment}", "install", "--no-index", "--no-deps")
    harness.python(
        *(*install, "--quiet", "--no-build-isolation", "-e", sources),
        folder="/",
        **dict.fromkeys(("CC", "CXX"), "/nonexistent"),
    )
    run("-c", USE_TORCH)
    run("-m", "timeit", "-n1", "-r1", USE_TORCH, folder=sources)
    run("-c", NO_TRITON, folder=sources)
    # The real compiler, installed or put on the path later, is still there.
    (tmp_path / "compiler" / "triton").mkdir(parents=True)
    (tmp_path / "compiler" / "triton" / "__init__.py").write_text("language = 1")
    path = str(tmp_path / "compiler")
    run("-c", f"import sys; sys.path.append({path!r}); import triton; triton.language")
    shutil.rmtree(sources)
    gone = run("-c", "print(1)")
    assert (gone.stdout, gone.stderr) == ("1\n", "")


@pytest.mark.parametrize("package", USES_TORCH)
def test_the_guard_comes_before_torch(package):
    lines = (
        (harness.REPOSITORY / package.replace(".", "/") / "__init__.py").read_text().splitlines()
    )
    imported = [line for line in lines if line.startswith(("import ", "from "))]
    imports = [line for line in imported if line.split()[1] not in sys.stdlib_module_names]
    assert imports[0].startswith("import _triton_shadow")


def test_every_package_that_imports_torch_is_guarded():
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    importers = graph.find_modules_that_directly_import("torch")
    guarded = tuple(f"{package}." for package in USES_TORCH)
    assert [module for module in importers if not f"{module}.".startswith(guarded)] == []


def test_no_import_needs_an_optional_package_or_starts_cuda():
    python(BLOCK_OPTIONAL + IMPORT_EVERYTHING + NO_CUDA, *PACKAGES)
