#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the dependencies in pyproject.toml, and keeps the installed torch.
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
  echo "install_python.sh: $PYTHON has no torch; use a base image that has it (BASE_IMAGE)" >&2
  exit 1
fi

"$PYTHON" docker/wanted.py "${EXTRAS:-}" >"$work/wanted.txt"

# Keeps what the base image built against each other: torch with its companions, and NumPy.
"$PYTHON" - >"$work/constraints.txt" <<'PYTHON_END'
import importlib.metadata
import re

kept = re.compile(r"(torch\w*|numpy|triton|pytorch-triton|nvidia-.*)", re.IGNORECASE)
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
print(*sorted(f"{n}=={v}" for n, v in found.items() if n and kept.fullmatch(n)), sep="\n")
PYTHON_END

# Replaces the base image's own constraints, which pin build tools as well.
export PIP_CONSTRAINT=$work/constraints.txt
"$PYTHON" -m pip install --requirement "$work/wanted.txt"
docker/slim.sh python

after=$(torch_version)
if [[ $before != "$after" ]]; then
  echo "install_python.sh: torch changed from $before to $after" >&2
  exit 1
fi
echo "install_python.sh: done; torch is still $after"
