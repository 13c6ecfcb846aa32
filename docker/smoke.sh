#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From raw logs to latencies in under a minute, with or without a GPU: does this installation work?
#   PYTHON       interpreter (default: python3)
#   BASE_DEVICE  cpu, cuda or auto (default: auto)
set -euo pipefail

PYTHON=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() {
  echo "+ python -m $*"
  "$PYTHON" -m "$@"
}
dlrm() {
  step dlrm.scripts.main --base_device="${BASE_DEVICE:-auto}" --dataset="$work/dataset" "$@"
}

step preproc.generate_criteo --output="$work/raw" --rows=6000 --days=3
step preproc.clicks --input="$work/raw" --output="$work/dataset" --frequency_limit=2 \
  --progress=none
dlrm --mode=train --max_steps=20 --batch_size=128 --embedding_dim=16 --bottom_mlp_sizes=64,16 \
  --top_mlp_sizes=64,1 --lr=0.1 --warmup_steps=5 --decay_steps=0 --print_freq=10 \
  --save_checkpoint_path="$work/checkpoint" --log_path="$work/train.json"
dlrm --mode=test --load_checkpoint_path="$work/checkpoint" --log_path="$work/test.json"
dlrm --mode=inference_benchmark --load_checkpoint_path="$work/checkpoint" \
  --inference_benchmark_batch_sizes=1,64 --inference_benchmark_steps=20 \
  --log_path="$work/inference.json"
echo "smoke.sh: this installation works"
