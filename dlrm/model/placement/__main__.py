# SPDX-License-Identifier: Apache-2.0
"""Plans a placement: `python -m dlrm.model.placement`, see dlrm.scripts.plan_placement."""

import sys

from dlrm.scripts.plan_placement import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
