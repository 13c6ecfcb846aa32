#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the torch that requirements.txt pins, unless the base image has torch.
#   PYTHON       interpreter to install for (default: python3)
#   TORCH_INDEX  index of PyTorch's builds; empty uses pip's own, whose build is for CUDA
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
torch_version() {
  "$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))'
}

if version=$(torch_version 2>/dev/null); then
  echo "install_torch.sh: torch $version is already installed"
  exit 0
fi
"$PYTHON" -m pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.txt)"
docker/slim.sh python
echo "install_torch.sh: installed torch $(torch_version)"
