# SPDX-License-Identifier: Apache-2.0
"""Runs a Triton server, as `recsys-recipes serve` does; run by path."""

import sys

from recsys_recipes.serving.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
