# SPDX-License-Identifier: Apache-2.0
"""Generated click logs: `python -m preproc.generate_criteo`, see preproc.synthetic.clicks."""

import sys

from preproc.synthetic.clicks import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
