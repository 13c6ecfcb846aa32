#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs Java and PySpark if WITH_SPARK=1, so that the image can also run Spark's executors.
#   PYTHON      interpreter to install for (default: python3)
#   WITH_SPARK  1 installs them (default: 0)
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${WITH_SPARK:-0} != 1 ]]; then
  echo "install_spark.sh: skipped (WITH_SPARK=1 installs Java and PySpark)"
  exit 0
fi
if ! command -v java >/dev/null; then
  mkdir -p /usr/share/man/man1 # the package links pages there, and slim bases lack the folder
  docker/install_system.sh default-jre-headless
fi
EXTRAS=spark docker/install_python.sh
java -version
