#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a release's wheel in a bare Debian, without compiler and git, and runs the demo there.
#
#   bare_install.sh WHEELS SUITE ROOT [demo's flags]
#
# WHEELS  folder with the compiled wheel of a release, and those that it needs (pip download)
# SUITE   of Debian: bookworm has Python 3.11, trixie 3.13
# ROOT    folder of the file system; made by debootstrap if it is not there
# Needs root and debootstrap. Nothing stays mounted.
set -euo pipefail

if (($# < 3)) || ((EUID)); then
  echo "usage, as root: bare_install.sh WHEELS SUITE ROOT [demo's flags]" >&2
  exit 2
fi
wheels=$(realpath "$1") suite=$2 root=$(realpath --canonicalize-missing "$3")
shift 3

[[ -x $root/usr/bin/python3 ]] ||
  debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root"
rm -rf "$root/try" && mkdir -p "$root/try"

# shellcheck disable=SC2016  # expanded in the bare system
inside='
set -eu
cd /try
for tool in gcc g++ cc c++ git make; do
  if command -v "$tool"; then echo "this file system is not bare" >&2; exit 1; fi
done
python3 --version
python3 -m venv venv
PATH=/try/venv/bin:$PATH
SECONDS=0
set -x
pip install --quiet --no-index --find-links /mnt recsys-recipes
{ set +x; } 2>/dev/null
echo "installed after $SECONDS s"
set -x
recsys-recipes --version
recsys-recipes doctor
recsys-recipes demo "$@"
{ set +x; } 2>/dev/null
echo "from pip install to the AUC: $SECONDS s"
'
# shellcheck disable=SC2016  # expanded in the namespace
unshare --mount --fork bash -c '
root=$1 wheels=$2 inside=$3
shift 3
mount --bind "$wheels" "$root/mnt"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/try bash -c "$inside" bare "$@"
' namespace "$root" "$wheels" "$inside" "$@"
