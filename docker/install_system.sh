#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages that a build needs, and adds the user of the image if USER_ID is set.
# It skips installed packages, so it also runs without root on a machine that has them all.
#   install_system.sh [PACKAGE ...]  installs these instead
set -euo pipefail

PACKAGES=(g++ make)
if (($#)); then PACKAGES=("$@"); fi

missing=()
for package in "${PACKAGES[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || command -v "$package" >/dev/null || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID)) || ! command -v apt-get >/dev/null; then
    echo "install_system.sh: missing: ${missing[*]}; install them with your package manager" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  "$(dirname "$0")/slim.sh" system
  apt-get update
  apt-get install --yes --no-install-recommends "${missing[@]}"
  apt-get clean
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
fi

if [[ -n ${USER_ID:-} ]]; then
  # torch.compile looks up the user's name for its cache, so the id needs an entry.
  getent passwd "$USER_ID" >/dev/null ||
    useradd --create-home --uid "$USER_ID" --shell /bin/bash recipes
  # --log_path is relative by default, so the working directory must be writable.
  chown "$USER_ID" .
fi
echo "install_system.sh: ${PACKAGES[*]} are installed"
