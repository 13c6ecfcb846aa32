#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Keeps what no program needs out of the image, if SLIM=1. Each build step calls it, since a later
# layer of an image cannot make an earlier one smaller.
#   slim.sh system   before apt-get: excludes documents, LTO and sanitizers from packages
#   slim.sh python   after pip: removes the tests of packages
#   slim.sh sources  after the build: removes objects, writes byte code of what the programs import
#   PYTHON  interpreter (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
[[ ${SLIM:-0} == 1 ]] || exit 0

case ${1:-} in
  system)
    mkdir -p /etc/dpkg/dpkg.cfg.d
    {
      printf 'path-exclude=/usr/share/%s/*\n' doc info locale man
      printf 'path-exclude=/usr/%s\n' 'bin/*-lto-dump-*' 'lib/gcc/*/lto1' 'lib/gcc/*san*.a' \
        'lib/python3*/config-*.a'
    } >/etc/dpkg/dpkg.cfg.d/slim
    ;;
  python)
    site=$("$PYTHON" -c 'import torch; print(torch.__path__[0])')
    rm -rf "$site"/test "$site"/bin/test_* "$site"/bin/protoc*
    find "${site%/*}" -type d -name tests -prune -exec rm -r {} +
    ;;
  sources)
    rm -rf build
    "$PYTHON" -m dlrm.scripts.main --help >/dev/null
    "$PYTHON" -m bert4rec.scripts.main --help >/dev/null
    ;;
  *)
    echo "slim.sh: expected system, python or sources, got '${1:-}'" >&2
    exit 2
    ;;
esac
