#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Raw Criteo logs to a DLRM dataset.
#
#   ./prepare_dataset.sh [frequency_limit] [CPU|GPU] [native|Spark|NVTabular] [--flag=value ...]
#
# INPUT_PATH      folder with day_0 ... day_23, or one file   (default /data/dlrm/criteo)
# OUTPUT_PATH     the dataset to make                         (default /data/dlrm/binary_dataset)
# RECIPES_PYTHON  interpreter                                 (default: the repository's .venv, else python3)
#
# Further arguments go to `python -m preproc.clicks` (--help lists them). Existing data is removed
# only with --overwrite. To resume after an interruption, make the same call again.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
frequency_limit='' device=CPU engine=native  # no limit given: the preset's, 15 for dlrm

fail() {
  echo "prepare_dataset.sh: $1" >&2
  exit 2
}

if [[ $# -gt 0 && $1 != -* ]]; then frequency_limit=$1 && shift; fi
if [[ $# -gt 0 && $1 != -* ]]; then device=$1 && shift; fi
if [[ $# -gt 0 && $1 != -* ]]; then engine=$1 && shift; fi

[[ -z $frequency_limit || $frequency_limit =~ ^[0-9]+$ ]] ||
  fail "the frequency limit must be a number, such as 15; got '$frequency_limit'"
case $engine in
  native | reference | Spark | NVTabular) ;;
  *) fail "unknown engine '$engine'; choose native, reference, Spark or NVTabular" ;;
esac
case $device in
  CPU) ;;
  GPU)
    [[ $engine == NVTabular ]] || fail "engine $engine works on the CPU; choose CPU, or NVTabular"
    ;;
  *) fail "the device must be CPU or GPU, got '$device'" ;;
esac

if [[ $engine == Spark ]]; then
  exec "$repository/preproc/run-spark.sh" \
    ${frequency_limit:+--frequency_limit="$frequency_limit"} "$@"
fi
if [[ $engine == NVTabular ]]; then
  exec "$repository/preproc/run_nvtabular.sh" "$device" \
    ${frequency_limit:+--frequency_limit="$frequency_limit"} "$@"
fi

input=${INPUT_PATH:-/data/dlrm/criteo}
output=${OUTPUT_PATH:-/data/dlrm/binary_dataset}
python=${RECIPES_PYTHON:-$repository/.venv/bin/python}
[[ -n ${RECIPES_PYTHON:-} || -x $python ]] || python=python3

# Stay in the caller's folder, for relative paths, but do not import modules from there.
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
exec "$python" -m preproc.clicks --input="$input" --output="$output" \
  ${frequency_limit:+--frequency_limit="$frequency_limit"} --engine="$engine" "$@"
