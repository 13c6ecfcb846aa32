#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Raw Criteo logs to a DLRM dataset with Spark: dictionaries, then train, test and validation.
#
#   ./run-spark.sh [--flag=value ...]
#
# INPUT_PATH           folder with day_0 ... day_23, or one file   (default /data/dlrm/criteo)
# OUTPUT_PATH          the dataset to make                         (default /data/dlrm/binary_dataset)
# MASTER               local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT
#                                                                  (default: this machine)
# TOTAL_CORES          cores to use in all                         (default: all there are)
# TOTAL_MEMORY         GB to use in all: the JVM of this machine, or shared by the executors
# EXECUTOR_CORES       cores of an executor on a cluster           (default 4)
# SPARK_LOCAL_DIRS     where Spark keeps what it shuffles
# USE_FREQUENCY_LIMIT  0: keep every category; 1: the limit in OPTS, else the preset's (15);
#                      another number: that limit                  (default 1)
# OPTS                 further flags, such as OPTS="--frequency_limit 8"
# RECIPES_PYTHON       interpreter with PySpark                    (default: the repository's .venv, else python3)
#
# Further arguments go to `python -m preproc.clicks` (--help lists them). To resume after an
# interruption, make the same call again. Input, output and work folder must be on storage that all
# executors see.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "run-spark.sh: $1" >&2
  exit 2
}

number() { # NAME: checks that its value is empty or a whole number; removes leading zeros
  [[ -n ${!1:-} ]] || return 0
  [[ ${!1} =~ ^0*[0-9]{1,9}$ ]] || fail "$1 must be a whole number below 10^9, got '${!1}'"
  printf -v "$1" %d "$((10#${!1}))"
}

for name in TOTAL_CORES TOTAL_MEMORY EXECUTOR_CORES USE_FREQUENCY_LIMIT; do number "$name"; done

master=${MASTER:-}
flags=()
if [[ -z $master || $master == local* ]]; then
  flags+=(--master="${master:-local[${TOTAL_CORES:-*}]}")
  [[ -z ${TOTAL_MEMORY:-} ]] || flags+=(--spark_conf="spark.driver.memory=${TOTAL_MEMORY}g")
else
  cores=${EXECUTOR_CORES:-4}
  ((cores > 0)) || fail "EXECUTOR_CORES must be at least 1"
  flags+=(--master="$master" --executor_cores="$cores")
  if [[ -n ${TOTAL_CORES:-} ]]; then
    executors=$((TOTAL_CORES / cores))
    ((executors > 0)) || fail "TOTAL_CORES $TOTAL_CORES is less than EXECUTOR_CORES $cores"
    flags+=(--spark_conf="spark.cores.max=$TOTAL_CORES,spark.executor.instances=$executors")
    if [[ -n ${TOTAL_MEMORY:-} ]]; then
      ((TOTAL_MEMORY >= executors)) ||
        fail "TOTAL_MEMORY $TOTAL_MEMORY GB is less than 1 GB for each of $executors executors"
      flags+=(--executor_memory="$((TOTAL_MEMORY / executors))g")
    fi
  elif [[ -n ${TOTAL_MEMORY:-} ]]; then
    fail "TOTAL_MEMORY is shared by the executors of a cluster: set TOTAL_CORES too"
  fi
fi

case ${USE_FREQUENCY_LIMIT:-1} in
  1) ;;
  *) flags+=(--frequency_limit="$USE_FREQUENCY_LIMIT") ;;
esac
read -r -a options <<<"${OPTS:-}"

input=${INPUT_PATH:-/data/dlrm/criteo}
output=${OUTPUT_PATH:-/data/dlrm/binary_dataset}
python=${RECIPES_PYTHON:-$repository/.venv/bin/python}
[[ -n ${RECIPES_PYTHON:-} || -x $python ]] || python=python3
[[ -z ${SPARK_LOCAL_DIRS:-} ]] || export SPARK_LOCAL_DIRS

# Stay in the caller's folder, for relative paths, but do not import modules from there.
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
exec "$python" "$repository/preproc/spark_data_utils.py" --input="$input" --output="$output" "${flags[@]}" \
  ${options[@]+"${options[@]}"} "$@"
