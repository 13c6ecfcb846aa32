# SPDX-License-Identifier: Apache-2.0
"""Where code may lie and what the repository may hold."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import grimp
import pytest
import yaml

from tests.harness import REPOSITORY, repository_files

MAX_BYTES = 250_000
MAX_RECORD_BYTES = 500_000
"""Of measurements, which grow by a session each time."""
MAX_MODULES = 12
REFUSED_NAMES = {"common", "commons", "helpers", "misc", "shared", "util", "utils"}
MODELS = ("dlrm", "bert4rec")
NATIVE_SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".cu", ".sh"}

# Spelled in parts, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home|Users|work)" + r"/\w")
REGISTRY_HOSTS = re.compile(
    r"\b(?:pypi|files\.pythonhosted|quay|ghcr|gcr|docker)\." + r"(?:org|io)\b"
    r"|download\.pytorch\." + r"org|pypi\.(?:nvidia|ngc)"
)

OVERRIDE = re.compile(r"#\s*type:\s*ignore\[[\w\s,-]*" + "override")


def texts():
    for path in repository_files():
        try:
            yield path.relative_to(REPOSITORY), path.read_text()
        except UnicodeDecodeError:
            continue


def test_no_file_is_too_large():
    sizes = {p.relative_to(REPOSITORY): p.stat().st_size for p in repository_files()}
    records = Path("benchmark/results")
    limits = {p: MAX_RECORD_BYTES if p.parent == records else MAX_BYTES for p in sizes}
    assert {str(path): size for path, size in sizes.items() if size > limits[path]} == {}


def test_every_source_file_names_its_licence():
    missing = [
        str(path)
        for path, text in texts()
        if path.suffix in SOURCE_SUFFIXES
        and text.strip()
        and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.splitlines()[:3])
    ]
    assert missing == []


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(MACHINE_PATH, id="path of a developer's machine"),
        pytest.param(REGISTRY_HOSTS, id="package registry"),
        pytest.param(OVERRIDE, id="subclass that lies to the type checker"),
    ],
)
def test_no_line_holds_what_does_not_belong_here(pattern):
    assert [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ] == []


def test_no_package_has_a_name_that_refuses_nothing():
    found = [
        str(path.relative_to(REPOSITORY))
        for path in repository_files("*.py")
        if REFUSED_NAMES & {path.stem, *path.relative_to(REPOSITORY).parts[:-1]}
    ]
    assert found == []


def test_no_two_native_sources_share_a_name():
    paths = [path.relative_to(REPOSITORY) for path in repository_files()]
    names = Counter(p.name for p in paths if p.suffix in NATIVE_SUFFIXES and p.parts[0] != "tests")
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []


def test_public_classes_share_a_name_only_from_model_to_model():
    places = defaultdict(list)
    for path in repository_files("*.py"):
        package, *_ = path.relative_to(REPOSITORY).parts
        if package != "tests":
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(package)
    assert len(places) > 300
    del places["TritonPythonModel"]  # as Triton's Python backend wants it
    for name, packages in places.items():
        assert len(packages) == 1 or sorted(packages) == sorted(MODELS), name


def test_no_folder_holds_more_modules_than_a_newcomer_reads_at_a_glance():
    counted = Counter(
        path.parent.relative_to(REPOSITORY)
        for path in repository_files("*.py")
        if not path.name.startswith("__")
    )
    # The benchmark's suites are not sorted yet.
    sorted_ = {f: n for f, n in counted.items() if f.parts[:1] not in (("tests",), ("benchmark",))}
    assert {str(folder): n for folder, n in sorted_.items() if n > MAX_MODULES} == {}


def test_triton_is_never_a_package():
    assert not (REPOSITORY / "triton" / "__init__.py").exists()


def test_every_training_module_serves_every_model():
    graph = grimp.build_graph("recsys", *MODELS, cache_dir=None)
    descendants = graph.find_descendants("recsys.train")
    # A package is used through its modules.
    modules = sorted(module for module in descendants if not graph.find_children(module))
    assert modules
    unused = [
        f"{module} by {model}"
        for model in MODELS
        for module in modules
        if not graph.chain_exists(importer=model, imported=module, as_packages=True)
    ]
    assert unused == []


def test_commit_hooks_run_the_tools_of_make_check():
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    makefile = (REPOSITORY / "Makefile").read_text()
    recipe = "".join(makefile.split(f"\n{t}:")[1].split("\n\n")[0] for t in ("check", "lint"))
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks[0]["hooks"]}
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe))
