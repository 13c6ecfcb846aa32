# SPDX-License-Identifier: Apache-2.0
"""Asks a Triton server, as `recsys-recipes ask` does; run by path."""

import sys

from recsys_recipes.serving.ask import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
