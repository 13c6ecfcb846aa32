# SPDX-License-Identifier: Apache-2.0
"""The library both models share: settings, programs, datasets, training, serving."""
