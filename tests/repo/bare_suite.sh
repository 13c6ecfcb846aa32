#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs README's two commands in a bare Debian: Python, g++, make and git, and nothing else.
#
#   bare_suite.sh ROOT [DATA]
#
# ROOT  folder of the file system; made by debootstrap if it is not there
# DATA  folder of the real logs (default: shared/data beside the repository)
# BIND  variable with files and folders of this machine that pip needs there, such as /etc/pip.conf
# Needs root and debootstrap. Nothing stays mounted.
set -euo pipefail

if (($# < 1)) || ((EUID)); then
  echo "usage, as root: bare_suite.sh ROOT [DATA]" >&2
  exit 2
fi
repository=$(cd "$(dirname "$0")/../.." && pwd)
root=$(realpath --canonicalize-missing "$1") data=${2:-$repository/../shared/data}

[[ -x $root/usr/bin/g++ ]] ||
  debootstrap --variant=minbase --include=python3,python3-venv,g++,make,git,ca-certificates \
    bookworm "$root"
rm -rf "$root/try" && mkdir -p "$root/try/shared/data"
git clone --quiet "$repository" "$root/try/recipes"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# as on an installed system: torchrun looks for the machine by its name
printf '127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost\n' "$(uname -n)" > "$root/etc/hosts"

# shellcheck disable=SC2016  # expanded in the bare system
inside='
set -u
cd /try/recipes
SECONDS=0
for target in setup demo test; do
  make "$target"
  echo "make $target: status $?, $SECONDS s after the start"
done'
# shellcheck disable=SC2016  # expanded in the namespace
unshare --mount --pid --fork bash -c '
set -e
root=$1 data=$2 inside=$3
mount --bind -o ro "$data" "$root/try/shared/data"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
for path in ${BIND-}; do
  if [[ -d $path ]]; then mkdir -p "$root$path"; else touch "$root$path"; fi
  mount --bind "$path" "$root$path"
done
variables=(PATH=/usr/bin:/bin:/usr/sbin HOME=/try CI=true)
while IFS= read -r variable; do variables+=("$variable"); done < <(env | grep "^PIP_")
exec chroot "$root" /usr/bin/env -i "${variables[@]}" bash -c "$inside"
' namespace "$root" "$data" "$inside"
