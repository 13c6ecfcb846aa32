# SPDX-License-Identifier: Apache-2.0
"""Optimizers of dense parameters and rows, with their schedule and precision."""

from typing import Literal

AmpDtype = Literal["float16", "bfloat16"]
"""Types of matrix products under --amp; defined here for the flags, which do not import torch."""
