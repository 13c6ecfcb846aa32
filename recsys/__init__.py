# SPDX-License-Identifier: Apache-2.0
"""The library of both models: settings, programs, datasets, training, serving."""

import recsys.at_start  # noqa: F401  (first, see there)

__version__ = "0.1.0"
