# SPDX-License-Identifier: Apache-2.0
"""Writes the exact versions and hashes of all packages that requirements bring, for this platform.

    python release/lock.py REQUIREMENTS LOCK

`pip install --require-hashes -r LOCK` then installs these files and no others, whatever an index
offers by then.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def resolve(requirements: Path) -> list[dict[str, Any]]:
    """Asks pip what it would install into an empty environment; nothing is installed.

    Raises:
        SystemExit: pip cannot resolve the requirements; its message was printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--report", str(report), "-r", str(requirements)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        packages: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return packages


def lines(packages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields a requirement with its hash for each package, sorted by name."""
    for package in sorted(packages, key=lambda each: str(each["metadata"]["name"]).lower()):
        named = f"{package['metadata']['name']}=={package['metadata']['version']}"
        hashes = package["download_info"]["archive_info"]["hashes"]
        yield f"{named} --hash=sha256:{hashes['sha256']}"


def main(requirements: str, lock: str) -> None:
    """Writes the lock once all packages are known."""
    text = "\n".join(lines(resolve(Path(requirements)))) + "\n"
    path = Path(lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
    print(f"{path}: {text.count('--hash')} packages with their hashes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
