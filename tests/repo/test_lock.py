# SPDX-License-Identifier: Apache-2.0
"""`make locked`: the hashes of all packages, which pip then insists on."""

import zipfile
from pathlib import Path

from tests import harness
from tests.harness import REPOSITORY

LOCK = REPOSITORY / "release" / "lock.py"


def write_wheel(folder: Path, name: str, content: str, needs: str = "") -> None:
    """Writes a wheel of one module, which may need another package."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_pip_installs_what_was_locked_and_nothing_else(tmp_path):
    write_wheel(tmp_path, "first", "x = 1\n", needs="second")
    write_wheel(tmp_path, "second", "x = 2\n")
    source = f"--no-index\n--find-links {tmp_path}\n"
    requirements, lock = tmp_path / "requirements.txt", tmp_path / "build" / "lock"
    requirements.write_text(f"{source}first==1.0\n")
    harness.python(LOCK, requirements, lock)
    names = [line.split(" --hash=sha256:")[0] for line in lock.read_text().splitlines()]
    assert names == ["first==1.0", "second==1.0"]
    install = ("-m", "pip", "install", "--require-hashes", "--no-index", "--find-links", tmp_path)
    harness.python(*install, "--target", tmp_path / "installed", "-r", lock)
    assert (tmp_path / "installed" / "second.py").read_text() == "x = 2\n"
    write_wheel(tmp_path, "second", "x = 3\n")  # the same name and version, another content
    harness.python(*install, "--target", tmp_path / "again", "-r", lock, status=1)
    assert not (tmp_path / "again" / "second.py").exists()


def test_a_requirement_that_cannot_be_met_writes_no_lock(tmp_path):
    (tmp_path / "requirements.txt").write_text("--no-index\nmissing==1.0\n")
    harness.python(LOCK, tmp_path / "requirements.txt", tmp_path / "lock", status=1)
    assert not (tmp_path / "lock").exists()
