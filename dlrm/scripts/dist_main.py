# SPDX-License-Identifier: Apache-2.0
"""The same program with defaults for large models on several processes, under torchrun.

torchrun --nproc_per_node 8 -m dlrm.scripts.dist_main --mode train --dataset /data/dlrm/dataset
"""

from dlrm.scripts.main import start

LARGE_MODEL = {
    "batch_size": 65536,
    "test_batch_size": 131072,
    "lr": 24.0,
    "warmup_steps": 8000,
    "decay_start_step": 48000,
    "decay_steps": 24000,
}
"""Defaults that differ from those of `dlrm.scripts.main`: NVIDIA's for its large model.

Batch sizes are those of all processes together.
"""

if __name__ == "__main__":
    start(**LARGE_MODEL)
