# SPDX-License-Identifier: Apache-2.0
"""`dlrm.scripts.main` with defaults for large models on several devices.

torchrun --nproc_per_node 8 -m dlrm.scripts.dist_main --mode train --dataset /data/dlrm/dataset
"""

from dlrm.scripts.flags import PRESETS
from dlrm.scripts.main import start

DEFAULTS = "terabyte_3"
"""Preset with defaults that replace those of `dlrm.scripts.main`."""

if __name__ == "__main__":
    start(**PRESETS.read(DEFAULTS).values)
