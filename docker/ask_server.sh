#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Asks a server for the score of one row of the tiny model; fails unless the answer has a number.
#   ask_server.sh ADDRESS  host:port of HTTP
#   PYTHON  interpreter (default: python3)
set -euo pipefail

PYTHON=${PYTHON:-python3}
address=${1:?ask_server.sh: give host:port of the server}
programs=$(cd "$(dirname "$0")/../triton" && pwd)
reply=$(echo '{"numerical": [[0.5, 1]], "categorical": [[3, 4]]}' |
  "$PYTHON" "$programs/client.py" --url="$address" --request=-)
echo "$reply"
if ! grep -Eq '"logit": \[\[-?[0-9]' <<<"$reply"; then
  echo "ask_server.sh: the server's answer has no number" >&2
  exit 1
fi
