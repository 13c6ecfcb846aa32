#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds NVIDIA's apex, whose fused MLP --optimized_mlp uses, if WITH_APEX=1 and apex is missing.
# PyPI's `apex` is another project, so the source comes from NVIDIA's repository.
#   PYTHON     interpreter to install for (default: python3)
#   WITH_APEX  1 builds it (default: 0)
#   APEX_REF   tag or branch to build
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
if "$PYTHON" -c 'from apex.mlp.mlp import mlp_function' 2>/dev/null; then
  echo "install_apex.sh: apex is already installed"
  exit 0
fi
if [[ ${WITH_APEX:-0} != 1 ]]; then
  echo "install_apex.sh: skipped (WITH_APEX=1 builds it); --optimized_mlp uses PyTorch's layers"
  exit 0
fi
if ! command -v nvcc >/dev/null; then
  echo "install_apex.sh: nvcc is not on the path; apex's fused MLP is CUDA code" >&2
  exit 1
fi
: "${APEX_REF:?install_apex.sh: APEX_REF must name a tag or branch of NVIDIA/apex}"
command -v git >/dev/null || docker/install_system.sh git
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 --branch "$APEX_REF" https://github.com/NVIDIA/apex "$work/apex"
export APEX_CPP_EXT=1 APEX_CUDA_EXT=1
"$PYTHON" -m pip install --no-build-isolation --no-deps "$work/apex"
"$PYTHON" -c 'from apex.mlp.mlp import mlp_function'
