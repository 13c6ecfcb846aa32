# SPDX-License-Identifier: Apache-2.0
"""Generated ratings: `python -m preproc.generate_ratings`, see preproc.synthetic.ratings."""

import sys

from preproc.synthetic.ratings import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
