#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the packages on the module path (editable) and builds the native code in place.
#   PYTHON  interpreter to install for (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
"$PYTHON" -m pip install --quiet --no-build-isolation --no-deps --editable .
"$PYTHON" setup.py --quiet build_ext --inplace
shopt -s nullglob
libraries=(preproc/clicks/kernel/*.so cuda_ext/*.so recsys/serve/server/*.so)
if ((${#libraries[@]} < 3)); then
  echo "build_extension.sh: native code was not built (is g++ missing?), only: ${libraries[*]}" >&2
  exit 1
fi
docker/slim.sh sources
echo "build_extension.sh: built ${libraries[*]}"
