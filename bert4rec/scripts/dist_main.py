# SPDX-License-Identifier: Apache-2.0
"""The same program with defaults for large catalogues on several processes, under torchrun.

torchrun --nproc_per_node 2 -m bert4rec.scripts.dist_main --dataset_name random \
    --random_user_count 3000 --random_item_count 500000 --random_size 8000000
"""

from bert4rec.scripts.main import start

LARGE_MODEL = {
    "parallelism": "dmp",
    "loss": "sampled",
    "num_negatives": 4096,
    "head": "tied",
    "max_len": 50,
    "emb_dim": 128,
    "windows": "random",
    "dupe_factor": 1,
    "train_batch_size": 1024,
}
"""Defaults that differ from those of `bert4rec.scripts.main`; every flag can still be given."""

if __name__ == "__main__":
    start(**LARGE_MODEL)
