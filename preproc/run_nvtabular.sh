#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Raw Criteo logs to a DLRM dataset with NVTabular (`make nvtabular` makes its environment).
#
#   ./run_nvtabular.sh [CPU|GPU] [--flag=value ...]
#
# CPU works on pandas, GPU on cuDF; neither named takes the GPU where NVTabular finds one.
#
# INPUT_PATH        folder with day_0 ... day_23, or one file   (default /data/dlrm/criteo)
# OUTPUT_PATH       the dataset to make                         (default /data/dlrm/binary_dataset)
# RECIPES_PYTHON    interpreter of this repository              (default: its .venv, else python3)
# NVTABULAR_PYTHON  interpreter that has NVTabular              (default: .venv-nvtabular)
#
# Further arguments go to `python -m preproc.clicks` (--help lists them). Nothing that exists is
# removed unless --overwrite is among them; after an interruption the same call continues.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
device=auto
if [[ $# -gt 0 && $1 != -* ]]; then
  case $1 in
    CPU | cpu) device=cpu ;;
    GPU | gpu) device=gpu ;;
    *) echo "run_nvtabular.sh: the device must be CPU or GPU, got '$1'" >&2 && exit 2 ;;
  esac
  shift
fi

input=${INPUT_PATH:-/data/dlrm/criteo}
output=${OUTPUT_PATH:-/data/dlrm/binary_dataset}
nvtabular=${NVTABULAR_PYTHON:-}
python=${RECIPES_PYTHON:-$repository/.venv/bin/python}
[[ -n ${RECIPES_PYTHON:-} || -x $python ]] || python=python3

# In the caller's folder, since relative paths mean that; what lies there is not imported.
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
exec "$python" -m preproc.clicks --input="$input" --output="$output" --engine=nvtabular \
  --nvtabular_device="$device" ${nvtabular:+--nvtabular_python="$nvtabular"} "$@"
