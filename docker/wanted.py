# SPDX-License-Identifier: Apache-2.0
"""Prints what an image installs in addition to torch: build tools, dependencies, optional groups.

python3 docker/wanted.py [EXTRAS], comma-separated groups of pyproject.toml
"""

import re
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints one requirement per line."""
    extras = [extra for extra in "".join(sys.argv[1:]).split(",") if extra]
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    settings = tomllib.loads(pyproject.read_text())
    project = settings["project"]
    wanted = [*settings["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            known = ", ".join(project["optional-dependencies"])
            sys.exit(f"no group {extra!r} in pyproject.toml; it has {known}")
        wanted += project["optional-dependencies"][extra]
    beside_torch = [w for w in wanted if re.split(r"[^\w.-]", w)[0] != "torch"]
    sys.stdout.write("\n".join(beside_torch) + "\n")


if __name__ == "__main__":
    main()
