# SPDX-License-Identifier: Apache-2.0
"""Builds the native code; pyproject.toml has everything else about the package.

Plain shared libraries without any Python API in them: the preprocessing kernel, the torch ops of
cuda_ext, and the native backend for Triton. Environment:

    FORCE_CUDA            1: CUDA kernels even with a CPU torch; 0: never.
                          Unset: where nvcc is found and torch has CUDA.
    CUDA_HOME             the toolkit, if not the one of the nvcc on the path
    TORCH_CUDA_ARCH_LIST  e.g. "80;90;100;120" or "8.0;9.0+PTX" (default 80;90); the last
                          architecture is kept as PTX too, for newer devices
    RECIPES_WHEEL         manylinux_2_28: a wheel for other machines, with symbols of glibc 2.28;
                          pure: one without compiled code. Unset: for this machine.
    RECIPES_URL           address of the repository: links of README lead there from the page of the
                          package; without one they are left out
    CC, CXX, LDSHARED     a cross-compiler's, with _PYTHON_HOST_PLATFORM (linux-aarch64) and
    RECIPES_TORCH_LIB     the folder torch/lib of that platform's torch
    XDG_CACHE_HOME        objects are kept in its recsys-recipes/objects (default ~/.cache), named
                          by a hash of what they depend on, for later builds and other checkouts
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

CSRC = Path("cuda_ext/csrc")
BACKEND_CSRC = Path("dlrm/serve/csrc")
CRITEO_KERNEL = Path("preproc/clicks/kernel")
SERVER = Path("recsys/serve/server")
TORCH_OPS, BACKEND = "cuda_ext._kernels", "recsys.serve.server.libtriton_recsys"
PRIVATE = "recsys.serve.server.libprivate"
CXX_FLAGS = ["-std=c++17", "-O3", "-Wall", "-Wextra", "-Wno-psabi", "-fvisibility=hidden", "-g0"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
OBJECTS = CACHE / "recsys-recipes" / "objects"
TIMES = {
    "preproc.clicks.kernel.clicks_kernel": "some seconds",
    TORCH_OPS: "some minutes, with CUDA kernels half an hour",
    BACKEND: "a minute or two",
    PRIVATE: "a second",
}
"""Library -> time that it takes to build on two cores."""
KEPT_S = 30 * 24 * 3600
"""Seconds for which an object that nothing uses is kept."""
URL = os.environ.get("RECIPES_URL", "").rstrip("/")
WHEEL = os.environ.get("RECIPES_WHEEL", "")
if WHEEL not in ("", "manylinux_2_28", "pure"):
    raise SystemExit(f"RECIPES_WHEEL={WHEEL}: expected manylinux_2_28 or pure")
if WHEEL == "manylinux_2_28":
    CXX_FLAGS += ["-DRECSYS_WHEEL", "-include", str(CSRC / "wheel" / "old_glibc.h")]
# PyTorch 2.11, the oldest version that the binary has to load into.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"
# GCC would make calls of memcpy out of loops that copy a few vectors.
KERNEL_FLAGS = ["-fno-tree-loop-distribute-patterns"]
X86_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ],
}
"""Instruction set -> flags of the sources that end in kernels_<instruction set>.cpp."""

# Runs whenever Python starts; does nothing if the sources have been removed since.
STARTUP = (
    "import importlib.util; importlib.util.find_spec('_triton_shadow') and "
    "__import__('_triton_shadow')\n"
)


def cuda_toolkit():
    """Returns the folder of the CUDA toolkit, or None.

    Asks nvcc itself, because the nvcc on the path may be a wrapper script in another folder.
    """
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc")
    if not home and nvcc:
        dry_run = [nvcc, "--dryrun", "x.cu"]
        answer = subprocess.run(dry_run, capture_output=True, text=True, check=False)
        top = re.search(r"^#\$ TOP=(.+)$", answer.stderr, re.MULTILINE)
        home = top.group(1) if top else None
    toolkit = Path(home or "/usr/local/cuda").resolve()
    return toolkit if (toolkit / "bin" / "nvcc").exists() else None


def wants_cuda(torch):
    """Returns True if the CUDA kernels should be compiled."""
    forced = os.environ.get("FORCE_CUDA", "")
    if forced:
        return forced != "0"
    return cuda_toolkit() is not None and torch.version.cuda is not None


def architecture_flags():
    """Returns nvcc's -gencode flags for TORCH_CUDA_ARCH_LIST."""
    listed = re.split(r"[;, ]+", os.environ.get("TORCH_CUDA_ARCH_LIST") or "80;90")
    archs = [arch.removesuffix("+PTX").replace(".", "") for arch in listed if arch]
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return [*flags, f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]


@functools.cache
def version_of(compiler):
    """Returns the version text of a compiler; empty if it is not installed."""
    command = [shutil.which(compiler) or "true", "--version"]
    return subprocess.run(command, capture_output=True, check=False).stdout


def say(line):
    """Prints a line at once, under --quiet too: compiling takes minutes."""
    print(line, flush=True)


def kept_object(source, output, contents, compile_to_output):
    """Makes an object file, or copies one of the same contents.

    Args:
        source: path that is compiled.
        output: path of the object.
        contents: bytes of everything that the object depends on.
        compile_to_output: makes it.
    """
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    kept = OBJECTS / f"{digest.hexdigest()}.o"
    output.parent.mkdir(parents=True, exist_ok=True)
    if kept.exists():
        shutil.copyfile(kept, output)
        with contextlib.suppress(OSError):  # another user's
            kept.touch()
        return
    started = time.monotonic()
    compile_to_output()
    say(f"  {source}: {time.monotonic() - started:.0f} s")
    with contextlib.suppress(OSError):  # the folder is not writable: keeps nothing
        OBJECTS.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(output, unfinished)
        unfinished.replace(kept)
        for old in OBJECTS.iterdir():
            if time.time() - old.stat().st_mtime > KEPT_S:
                old.unlink(missing_ok=True)


class BuildSharedLibrary(build_ext):
    """Builds plain shared libraries, so that one file serves every Python version."""

    def run(self):
        """Builds; an editable install also gets the startup hook."""
        super().run()
        if self.editable_mode:
            installed = Path(self.get_finalized_command("install").install_lib)
            (installed / "_triton_shadow.pth").write_text(STARTUP)

    def get_ext_filename(self, fullname):
        """Drops the interpreter tag: the library has no Python API in it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext):
        """Exports what the source marks as visible; there is no PyInit function."""
        return ext.export_symbols

    def build_extension(self, ext):
        """Builds a library if one of its sources is newer."""
        build = self.build_torch_ops if ext.name == TORCH_OPS else self.build_plain
        target = Path(self.get_ext_fullpath(ext.name))
        newest = max(Path(source).stat().st_mtime for source in [*ext.sources, *ext.depends])
        if self.force or not target.exists() or target.stat().st_mtime <= newest:
            target.parent.mkdir(parents=True, exist_ok=True)
            name = ext.name.replace(".", "/")
            say(f"Building {name}, {TIMES[ext.name]} the first time; compiled files:")
            build(ext, target)

    def build_torch_ops(self, ext, target):
        """Builds the ops of cuda_ext, with CUDA kernels if they are wanted."""
        import torch

        root = Path(torch.__file__).parent
        with_cuda = wants_cuda(torch)
        if with_cuda and os.environ.get("FORCE_CUDA"):
            ext.optional = False  # asked for: must not fall back to plain PyTorch silently
        toolkit = self.require_toolkit() if with_cuda else None
        flags = [*CXX_FLAGS, STABLE_ABI, f"-isystem{root}/include"]
        if with_cuda:
            flags.append("-DRECSYS_CUDA")
        objects = self.compile_cpp(ext, flags, {str(root): torch.__version__})
        torch_lib = os.environ.get("RECIPES_TORCH_LIB") or root / "lib"
        libraries = ["-Wl,--no-as-needed", f"-L{torch_lib}", "-ltorch", "-ltorch_cpu"]
        if with_cuda:
            sources = [source for source in ext.sources if source.endswith(".cu")]
            objects += [self.compile_cuda(toolkit, ext, source) for source in sources]
            folder = "lib64" if (toolkit / "lib64").exists() else "lib"
            libraries += [f"-L{toolkit / folder}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
        self.link(objects, target, libraries)

    def build_plain(self, ext, target):
        """Builds a library that needs no torch."""
        objects = self.compile_cpp(ext, [*CXX_FLAGS, "-pthread", "-I."])
        self.link(objects, target, ["-pthread", *ext.extra_link_args])

    def compile_cpp(self, ext, flags, versions=None):
        """Compiles the C++ sources in parallel; returns the objects.

        Args:
            ext: the extension.
            flags: flags of the compiler.
            versions: path -> text that replaces it in the key of an object, so that checkouts with
                other paths share objects.
        """
        command = [*self.compiler.compiler_so, *self.compiler.compiler_so_cxx]
        headers = [Path(header).read_bytes() for header in ext.depends]

        def compile_source(source):
            every = [*flags, *self.flags_of(Path(source).name)]
            words = "\0".join([*command, source, *every])
            for path, meaning in (versions or {}).items():
                words = words.replace(path, meaning)
            (output,) = self.compiler.object_filenames([source], output_dir=self.build_temp)
            kept_object(
                source,
                Path(output),
                [words.encode(), version_of(command[0]), Path(source).read_bytes(), *headers],
                lambda: self.compiler.compile(
                    [source], output_dir=self.build_temp, extra_postargs=every
                ),
            )
            return output

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(compile_source, [s for s in ext.sources if s.endswith(".cpp")]))

    def link(self, objects, target, libraries):
        """Links to a temporary file and renames it: an interrupted build keeps the old library.

        Some compilers bring their C++ library along. Exported, it would mix with torch's: an error
        of an op would then end the process.
        """
        unfinished = target.with_suffix(".so.unfinished")
        flags = [*libraries, "-Wl,--exclude-libs,ALL"]
        self.compiler.link_shared_object(
            objects, str(unfinished), extra_postargs=flags, target_lang="c++"
        )
        unfinished.replace(target)

    @staticmethod
    def flags_of(name):
        """Returns the additional flags of a source."""
        _, has_kernels, instruction_set = Path(name).stem.rpartition("kernels_")
        if not has_kernels:
            return []
        on_x86 = sysconfig.get_platform().endswith(("x86_64", "amd64"))
        return [*(X86_FLAGS.get(instruction_set, []) if on_x86 else []), *KERNEL_FLAGS]

    @staticmethod
    def require_toolkit():
        """Returns the CUDA toolkit, or fails with what to do."""
        toolkit = cuda_toolkit()
        if toolkit is None:
            raise ExecError("FORCE_CUDA=1, but there is no nvcc: set CUDA_HOME, or FORCE_CUDA=0")
        return toolkit

    def compile_cuda(self, toolkit, ext, source):
        """Compiles a CUDA source; returns the object's path."""
        output = Path(self.build_temp, source).with_suffix(".cu.o")
        nvcc = str(toolkit / "bin" / "nvcc")
        flags = ("-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden", *architecture_flags())
        words = "\0".join([source, *flags, os.environ.get("NVCC_APPEND_FLAGS", "")])
        files = [Path(path).read_bytes() for path in (source, *ext.depends)]
        kept_object(
            source,
            output,
            [words.encode(), version_of(nvcc), *files],
            lambda: self.spawn([nvcc, *flags, "-c", source, "-o", str(output)]),
        )
        return str(output)


class PythonIndependentWheel(bdist_wheel):
    """Tags the wheel for any Python 3: libraries use no Python API."""

    def get_tag(self):
        """Returns (python, abi, platform)."""
        platform_tag = super().get_tag()[2]
        if WHEEL == "manylinux_2_28":
            platform_tag = platform_tag.replace("linux", WHEEL, 1)
        return "py3", "none", platform_tag


def sources(folder, *patterns):
    """Returns the files of a folder as setuptools wants them."""
    return sorted(str(path) for pattern in patterns for path in Path(folder).glob(pattern))


def long_description():
    """Returns README with links that also work outside the repository, or without links."""
    links = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)")
    to = rf"[\1]({URL}/blob/HEAD/\2)" if URL else r"\1"
    return links.sub(to, Path("README.md").read_text())


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    project_urls={"Repository": URL} if URL else {},
    ext_modules=[]
    if WHEEL == "pure"
    else [
        Extension(
            "preproc.clicks.kernel.clicks_kernel",
            sources=[str(CRITEO_KERNEL / "clicks_kernel.cpp")],
            depends=sources(CRITEO_KERNEL, "*.h"),
            language="c++",
            optional=True,  # no compiler: the NumPy `reference` engine takes over and says so
        ),
        Extension(
            TORCH_OPS,
            sources=sources(CSRC, "**/*.cpp", "**/*.cu"),
            depends=sources(CSRC, "**/*.h", "**/*.cuh"),
            language="c++",
            optional=True,  # no compiler: plain PyTorch takes over and says so
        ),
        Extension(
            BACKEND,
            sources=[*sources(BACKEND_CSRC, "*.cpp"), str(CSRC / "wheel" / "old_glibc.cpp")],
            depends=[
                *sources(BACKEND_CSRC, "*.h"),
                *sources(CSRC, "**/*.h"),
                *sources(CRITEO_KERNEL, "*.h"),
            ],
            language="c++",
            extra_link_args=["-Wl,-z,defs"],
            optional=True,  # no compiler: `--backend native` is refused, the others serve
        ),
        Extension(
            PRIVATE,
            sources=sources(SERVER / "csrc", "*.cpp"),
            language="c++",
            extra_link_args=["-Wl,--as-needed,-z,defs"],
            optional=True,  # no compiler: `serve` says that it needs it
        ),
    ],
    cmdclass={"build_ext": BuildSharedLibrary, "bdist_wheel": PythonIndependentWheel},
)
