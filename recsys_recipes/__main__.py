# SPDX-License-Identifier: Apache-2.0
"""The command, for environments without its script: `python -m recsys_recipes`."""

import sys

from recsys_recipes.command import main

if __name__ == "__main__":
    sys.exit(main())
