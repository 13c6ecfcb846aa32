# SPDX-License-Identifier: Apache-2.0
"""Command line: MovieLens ratings to a dataset of sequences.

    python -m preproc.movielens --input FILE_OR_DIR --output DIR [--min_item_count 5] ...

reads u.data (ml-100k), ratings.dat (ml-1m, ml-10m), ratings.csv (ml-20m, 25m, 32m, latest) and text
with `user item` lines in time order (ml-1m.txt), plain or compressed.

Exit status: 0 done, 2 the input or a setting does not allow it, 3 bad rows, 130 interrupted.
"""

import sys
from collections.abc import Sequence

from preproc.ratings.command import run
from preproc.ratings.job import MOVIELENS


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run(MOVIELENS, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
