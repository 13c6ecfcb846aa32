#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Deploys a tiny model, serves it and asks for one row: does the server of this image answer?
#   PYTHON  interpreter (default: python3)
set -euo pipefail

PYTHON=${PYTHON:-python3}
programs=$(cd "$(dirname "$0")/../triton" && pwd)
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

"$PYTHON" -m dlrm.scripts.main --mode=train --base_device=cpu --dataset_type=synthetic_gpu \
  --num_numerical_features=2 --synthetic_dataset_table_sizes=10,20 --embedding_dim=16 \
  --synthetic_dataset_num_entries=256 --batch_size=64 --test_batch_size=64 --max_steps=2 \
  --bottom_mlp_sizes=16,16 --top_mlp_sizes=16,1 --save_checkpoint_path="$work/checkpoint" \
  --log_path="$work/log.json"
"$PYTHON" "$programs/deployer.py" --checkpoint="$work/checkpoint" --repository="$work/models"
: >"$work/serve.out"
"$PYTHON" "$programs/serve.py" --repository="$work/models" --log_file="$work/server.log" \
  >"$work/serve.out" 2>&1 &
server=$!
until grep -q '^Ready' "$work/serve.out"; do
  if ! kill -0 "$server" 2>/dev/null; then
    cat "$work/serve.out" >&2
    exit 1
  fi
  sleep 0.2
done
address=$(sed -n 's/.*gRPC \([^ ]*\).*/\1/p' "$work/serve.out")
reply=$(echo '{"numerical": [[0.5, 1]], "categorical": [[3, 4]]}' |
  "$PYTHON" "$programs/client.py" --url="$address" --request=-)
echo "$reply"
if ! grep -Eq '"logit": \[\[-?[0-9]' <<<"$reply"; then
  echo "smoke_serving.sh: the server's answer holds no number" >&2
  exit 1
fi
echo "smoke_serving.sh: this server answers"
