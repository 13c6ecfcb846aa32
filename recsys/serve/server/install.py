# SPDX-License-Identifier: Apache-2.0
"""Finds a Triton server on this machine and checks its requirements.

NVIDIA's container has a complete tritonserver on the PATH. On other machines the PyPI package
nvidia-pytriton has the binary: Triton core 2.51 (24.10) with only the Python backend. Its stubs are
in one folder per Python version. So the backend is copied to a folder of our own, next to our
native backend if that is built.
"""

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from recsys.errors import FAILED, UserError
from recsys.installation import IS_CHECKOUT, ROOT, command_for
from recsys.serve.server import native_backend

_STUB = "triton_python_backend_stub"
_PYTHON_BACKEND = ("libtriton_python.so", "triton_python_backend_utils.py")
_PRIVATE = Path(__file__).with_name("libprivate.so")
"""Hides a server's key and shared memory from other users, ends the server with its supervisor, and
frees memory that it would keep."""

_ENVIRONMENT = ROOT / ".venv-triton"
"""Environment with a server that `make triton-env` creates in a checkout."""


class ServerError(UserError):
    """A Triton server is missing, fails to start, or refuses a request."""

    exit_code = FAILED


class ServerInstall(NamedTuple):
    """A Triton server: its command, and variables to add to this process's environment."""

    command: list[str]
    environment: dict[str, str]


def python_with_server() -> Path | None:
    """Returns the Python of `make triton-env` if only that one has a server, else None."""
    python = _ENVIRONMENT / "bin" / "python"
    here = shutil.which("tritonserver") or importlib.util.find_spec("pytriton")
    if here or not IS_CHECKOUT or not os.access(python, os.X_OK):
        return None
    return None if _ENVIRONMENT.samefile(sys.prefix) else python


def find_server(backends: Path) -> ServerInstall:
    """Finds tritonserver on the PATH, or else the one of nvidia-pytriton.

    Args:
        backends: empty folder to fill with the backends of nvidia-pytriton's server, and with
            what every server loads.

    Raises:
        ServerError: there is no server, or it does not fit this Python.
    """
    on_path, spec = shutil.which("tritonserver"), importlib.util.find_spec("pytriton")
    if on_path is None and (spec is None or spec.origin is None):
        python = python_with_server()
        advice = f"run this with {python}" if python else f"run {command_for('triton-server')}"
        raise ServerError(
            "no Triton server: neither tritonserver on the PATH nor the package nvidia-pytriton "
            f"in {sys.prefix}; {advice}"
        )
    loaded = {"LD_PRELOAD": _joined(_preloaded(backends), os.getenv("LD_PRELOAD"))}
    if on_path is not None:
        return ServerInstall([on_path], loaded)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent / "tritonserver"
    libraries = root.parents[1] / "nvidia_pytriton.libs"
    _fill_backends(root, backends)
    # The stub uses the packages of the first python3 on the PATH, and ignores PYTHONPATH.
    loaded["PATH"] = _joined(Path(sys.prefix) / "bin", os.getenv("PATH"))
    loaded["LD_LIBRARY_PATH"] = _joined(libpython_folder(), libraries, os.getenv("LD_LIBRARY_PATH"))
    binary = root / "bin" / "tritonserver"
    return ServerInstall([str(binary), f"--backend-directory={backends}"], loaded)


def _joined(*paths: object) -> str:
    return ":".join(str(path) for path in paths if path)


def _preloaded(folder: Path) -> Path:
    """Returns our library for LD_PRELOAD; a copy if its path has a blank or a colon."""
    if not _PRIVATE.is_file():
        raise ServerError(
            f"{_PRIVATE}, which keeps requests and the server's key from other users of "
            f"this machine, was not built: {command_for('kernels')}"
        )
    return Path(shutil.copy2(_PRIVATE, folder)) if re.search(r"[\s:]", str(_PRIVATE)) else _PRIVATE


def _fill_backends(root: Path, backends: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        known = sorted(folder.name for folder in (root / "python_backend_stubs").glob("3.*"))
        raise ServerError(
            f"nvidia-pytriton has no Python backend for Python {version}, only for "
            f"{', '.join(known)}; run {command_for('triton environment')}"
        )
    folder = backends / "python"
    folder.mkdir()
    # Copies, because the server refuses links that lead out of the folder of backends.
    for file in (*(root / "backends" / "python" / name for name in _PYTHON_BACKEND), stub):
        shutil.copy2(file, folder)
    if native_backend.is_built():
        (backends / native_backend.NAME).mkdir()
        shutil.copy2(native_backend.LIBRARY, backends / native_backend.NAME)


def libpython_folder() -> Path:
    """Returns the folder of this Python's shared library, for the stub.

    Raises:
        ServerError: this Python has no shared library.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    of_python = map(sysconfig.get_config_var, ("LIBDIR", "LIBPL"))
    found = [Path(folder) / name for folder in of_python if folder and ".so" in name]
    soname = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    of_system = ("/usr/lib", sysconfig.get_config_var("MULTIARCH") or ""), ("/usr/lib64",)
    found += [Path(*folder, soname) for folder in (*of_system, ("/usr/lib",))]
    for library in found:
        if library.is_file():
            return library.parent
    raise ServerError(
        f"{sys.executable} was built without a shared libpython, which Triton's Python backend "
        "embeds; install it (Debian and Ubuntu: apt install libpython3-dev), or create the "
        f"environment from another Python: {command_for('triton environment')}"
    )


if __name__ == "__main__":  # `make triton-env` runs this to find a suitable Python
    _fits = (3, 11) <= sys.version_info[:2] <= (3, 12)  # NumPy 1.26 has no wheels for later ones
    sys.exit(None if _fits and libpython_folder() else f"Python {sys.version} does not fit")
