# SPDX-License-Identifier: Apache-2.0
"""Command line: Amazon reviews to a dataset of sequences.

    python -m preproc.amazon --input FILE --output DIR [--kcore once] ...

reads ratings as csv (`user,item,rating,timestamp` of 2014 and 2023, `item,user,...` of 2018),
5-core reviews as JSON lines (Electronics_5.json.gz), and text with `user item` lines in time order,
plain or compressed.

Exit status: 0 done, 2 the input or a setting does not allow it, 3 bad rows, 130 interrupted.
"""

import sys
from collections.abc import Sequence

from preproc.ratings.command import run
from preproc.ratings.job import AMAZON


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run(AMAZON, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
