# SPDX-License-Identifier: Apache-2.0
"""Finds a Triton server on this machine and checks its requirements.

NVIDIA's container has a complete tritonserver on the PATH. On other machines the PyPI package
nvidia-pytriton has the binary: Triton core 2.51 (24.10) with the Python backend alone. Its stubs
are in a folder per Python version, so the backend is copied to a folder of our own, beside our
native one where that is built.
"""

import dataclasses
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from recsys.errors import FAILED, UserError
from recsys.installation import IS_CHECKOUT, ROOT, command_for
from recsys.serve.server import native_backend

_STUB = "triton_python_backend_stub"
_PYTHON_BACKEND = ("libtriton_python.so", "triton_python_backend_utils.py")
_PRIVATE = Path(__file__).with_name("libprivate.so")
"""Keeps a server's key and shared memory from other users; setup.py builds it."""

_ENVIRONMENT = ROOT / ".venv-triton"
"""Environment of a checkout with a server, which `make triton-env` makes."""


class ServerError(UserError):
    """A Triton server is missing, fails to start, or refuses."""

    exit_code = FAILED


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerInstall:
    """A Triton server that can be started.

    Attributes:
        arguments: flags that name its folders.
        environment: variables to add to those of this process.
    """

    binary: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def python_with_server() -> Path | None:
    """Returns the Python of `make triton-env` where only that one has a server, else None."""
    python = _ENVIRONMENT / "bin" / "python"
    here = shutil.which("tritonserver") or importlib.util.find_spec("pytriton")
    if here or not IS_CHECKOUT or not os.access(python, os.X_OK):
        return None
    return None if _ENVIRONMENT.samefile(sys.prefix) else python


def find_server(backends: Path) -> ServerInstall:
    """Finds tritonserver on the PATH, else the one of nvidia-pytriton.

    Args:
        backends: empty folder that receives the backends of nvidia-pytriton's server, and what
            every server loads.

    Raises:
        ServerError: there is none, or it does not fit this Python.
    """
    loaded = {"LD_PRELOAD": _preloaded(backends)}
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return ServerInstall(binary=Path(on_path), environment=loaded)
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        python = python_with_server()
        advice = f"run this with {python}" if python else f"run {command_for('triton-server')}"
        raise ServerError(
            "no Triton server: neither tritonserver on the PATH nor the package nvidia-pytriton "
            f"in {sys.prefix}; {advice}"
        )
    root = Path(spec.origin).parent / "tritonserver"
    libraries = root.parents[1] / "nvidia_pytriton.libs"
    _fill_backends(root, backends)
    return ServerInstall(
        binary=root / "bin" / "tritonserver",
        arguments=(f"--backend-directory={backends}",),
        environment=loaded
        | {
            # The stub takes the packages of the first python3 on the PATH, and no PYTHONPATH.
            "PATH": os.pathsep.join((str(Path(sys.prefix) / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (libpython_folder(), str(libraries), os.getenv("LD_LIBRARY_PATH")))
            ),
        },
    )


def from_environment(name: str) -> str:
    """Returns the end of an argument of a server that stands for a variable's value."""
    return f"\n{name}"


def _preloaded(folder: Path) -> str:
    """Returns the value of LD_PRELOAD: our library, or a copy if its path has a blank or colon."""
    if not _PRIVATE.is_file():
        raise ServerError(
            f"{_PRIVATE}, which keeps requests and the server's key from other users of "
            f"this machine, was not built: {command_for('kernels')}"
        )
    library = _PRIVATE
    if re.search(r"[\s:]", str(library)):
        library = Path(shutil.copy2(library, folder))
    return ":".join(filter(None, (str(library), os.getenv("LD_PRELOAD"))))


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
    # Copies, since the server refuses links that lead out of the folder of backends.
    for file in (*(root / "backends" / "python" / name for name in _PYTHON_BACKEND), stub):
        shutil.copy2(file, folder / file.name)
    if native_backend.is_built():
        (backends / native_backend.NAME).mkdir()
        shutil.copy2(native_backend.LIBRARY, backends / native_backend.NAME)


def libpython_folder() -> str:
    """Returns the folder of this Python's shared library, for the stub.

    Raises:
        ServerError: this Python has none.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    for variable in ("LIBDIR", "LIBPL"):
        folder = sysconfig.get_config_var(variable)
        if folder and ".so" in name and (Path(folder) / name).is_file():
            return str(folder)
    multiarch = sysconfig.get_config_var("MULTIARCH")
    for folder in (f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"):
        soname = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
        if (Path(folder) / soname).is_file():
            return folder
    raise ServerError(
        f"{sys.executable} was built without a shared libpython, which Triton's Python backend "
        "embeds; install it (Debian and Ubuntu: apt install libpython3-dev), or make the "
        f"environment from another Python: {command_for('triton environment')}"
    )


if __name__ == "__main__":  # `make triton-env` looks for a Python with it
    _fits = (3, 11) <= sys.version_info[:2] <= (3, 12)  # NumPy 1.26 has no wheels for later ones
    sys.exit(None if _fits and libpython_folder() else f"Python {sys.version} does not fit")
