#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Raw Criteo logs to a DLRM dataset with NVTabular (`make nvtabular` makes its environment).
#
#   ./run_nvtabular.sh [CPU|GPU] [--flag=value ...]
#
# CPU uses pandas, GPU uses cuDF; without either, the GPU is used if NVTabular finds one.
#
# INPUT_PATH        folder with day_0 ... day_23, or one file   (default /data/dlrm/criteo)
# OUTPUT_PATH       the dataset to make                         (default /data/dlrm/binary_dataset)
# RECIPES_PYTHON    interpreter of this repository              (default: its .venv, else python3)
# NVTABULAR_PYTHON  interpreter that has NVTabular              (default: .venv-nvtabular)
#
# Further arguments go to `python -m preproc.clicks` (--help lists them). Existing data is removed
# only with --overwrite. To resume after an interruption, make the same call again.
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

# Stay in the caller's folder, for relative paths, but do not import modules from there.
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
exec "$python" -m preproc.clicks --input="$input" --output="$output" --engine=nvtabular \
  --nvtabular_device="$device" ${nvtabular:+--nvtabular_python="$nvtabular"} "$@"
