# SPDX-License-Identifier: Apache-2.0
"""The library of both models: settings, programs, datasets, training, serving."""

__version__ = "0.1.0"
