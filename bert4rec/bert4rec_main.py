# SPDX-License-Identifier: Apache-2.0
"""The training program as a script, for launchers that need a file.

torchrun --nproc_per_node 2 bert4rec/bert4rec_main.py --dataset_name random --mode ddp
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the script's folder first in the path, where its `data` and `config` would shadow
    # other modules.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from bert4rec.scripts.main import start

    start()
