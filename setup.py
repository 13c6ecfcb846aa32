# SPDX-License-Identifier: Apache-2.0
"""Builds the native code; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildSharedLibrary(build_ext):
    """Builds plain shared libraries for ctypes, so that one file serves every Python version."""

    def get_ext_filename(self, fullname):
        """Drops the interpreter tag: the library has no Python API in it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext):
        """Exports what the source marks as visible; there is no PyInit function."""
        return ext.export_symbols


setup(
    ext_modules=[
        Extension(
            "preproc.native.criteo_kernel",
            sources=["preproc/native/criteo_kernel.cpp"],
            depends=sorted(map(str, Path("preproc/native").glob("*.h"))),
            extra_compile_args=["-std=c++17", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"],
            language="c++",
            optional=True,  # no compiler: the NumPy `reference` engine takes over and says so
        )
    ],
    cmdclass={"build_ext": BuildSharedLibrary},
)
