# SPDX-License-Identifier: Apache-2.0
"""The training program with defaults for large catalogues on several processes.

torchrun --nproc_per_node 2 -m bert4rec.scripts.dist_main --dataset_name random \
    --random_user_count 3000 --random_item_count 500000 --random_size 8000000
"""

from bert4rec.scripts.flags import PRESETS
from bert4rec.scripts.main import start

DEFAULTS = "large-catalogue"
"""Preset whose settings replace the defaults of `bert4rec.scripts.main`."""

if __name__ == "__main__":
    start(**PRESETS.read(DEFAULTS).values)
