# SPDX-License-Identifier: Apache-2.0
"""Checks a dataset: `python -m dataspec.verify DIR`, see recsys.data.verify."""

import sys

from recsys.data.verify.run import main

if __name__ == "__main__":
    sys.exit(main())
