#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a tiny DLRM for two steps and deploys it to a model repository, for trying a server.
#   tiny_model.sh REPOSITORY
#   PYTHON  interpreter (default: python3)
set -euo pipefail

PYTHON=${PYTHON:-python3}
repository=${1:?tiny_model.sh: give the folder of the model repository}
programs=$(cd "$(dirname "$0")/../triton" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$PYTHON" -m dlrm.scripts.main --mode=train --base_device=cpu --dataset_type=synthetic_gpu \
  --num_numerical_features=2 --synthetic_dataset_table_sizes=10,20 --embedding_dim=16 \
  --synthetic_dataset_num_entries=256 --batch_size=64 --test_batch_size=64 --max_steps=2 \
  --bottom_mlp_sizes=16,16 --top_mlp_sizes=16,1 --save_checkpoint_path="$work/checkpoint" \
  --log_path="$work/log.json"
"$PYTHON" "$programs/deployer.py" --checkpoint="$work/checkpoint" --repository="$repository"
