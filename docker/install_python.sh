#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what pyproject.toml asks for, and leaves the torch that is there as it is.
#   PYTHON  interpreter to install for (default: python3)
#   EXTRAS  optional groups of pyproject.toml, comma-separated (default: none)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

torch_version() {
  "$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))'
}

if ! before=$(torch_version 2>/dev/null); then
  echo "install_python.sh: $PYTHON has no torch; take a base image that has one (BASE_IMAGE)" >&2
  exit 1
fi

"$PYTHON" - "$work" "${EXTRAS:-}" <<'PYTHON_END'
import importlib.metadata
import pathlib
import re
import sys
import tomllib

folder, extras = pathlib.Path(sys.argv[1]), [e for e in sys.argv[2].split(",") if e]
settings = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
project = settings["project"]
wanted = [*settings["build-system"]["requires"], *project["dependencies"]]
for extra in extras:
    if extra not in project["optional-dependencies"]:
        known = ", ".join(project["optional-dependencies"])
        sys.exit(f"install_python.sh: no group {extra!r} in pyproject.toml; it has {known}")
    wanted += project["optional-dependencies"][extra]
wanted = [w for w in wanted if re.match(r"[\w.-]+", w)[0].lower() != "torch"]
(folder / "wanted.txt").write_text("\n".join(wanted) + "\n")

# What the base image built against each other stays: torch with its companions, and NumPy.
kept = re.compile(r"(torch\w*|numpy|triton|pytorch-triton|nvidia-.*)", re.IGNORECASE)
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
lines = sorted(f"{n}=={v}\n" for n, v in found.items() if n and kept.fullmatch(n))
(folder / "constraints.txt").write_text("".join(lines))
PYTHON_END

# Takes the place of the base image's own constraints, which pin build tools as well.
export PIP_CONSTRAINT=$work/constraints.txt
"$PYTHON" -m pip install --requirement "$work/wanted.txt"

after=$(torch_version)
if [[ $before != "$after" ]]; then
  echo "install_python.sh: torch changed from $before to $after" >&2
  exit 1
fi
echo "install_python.sh: done; torch is still $after"
