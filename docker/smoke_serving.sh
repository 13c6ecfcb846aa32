#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Deploys and serves a tiny model, and asks it for one row: does the server of this image answer?
#   PYTHON  interpreter (default: python3)
set -euo pipefail

PYTHON=${PYTHON:-python3}
steps=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
finish() {
  if [[ -n $server ]]; then
    kill "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  rm -rf "$work"
}
trap finish EXIT

export PYTHON
"$steps/tiny_model.sh" "$work/models"
: >"$work/serve.out"
"$PYTHON" "$steps/../triton/serve.py" --repository="$work/models" --log_file="$work/server.log" \
  >"$work/serve.out" 2>&1 &
server=$!
until grep -q '^Ready' "$work/serve.out"; do
  if ! kill -0 "$server" 2>/dev/null; then
    cat "$work/serve.out" >&2
    exit 1
  fi
  sleep 0.2
done
address=$(sed -n 's/.*HTTP \([^ ]*\).*/\1/p' "$work/serve.out")
"$steps/ask_server.sh" "$address"
echo "smoke_serving.sh: this server answers"
