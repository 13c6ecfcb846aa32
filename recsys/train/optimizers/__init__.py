# SPDX-License-Identifier: Apache-2.0
"""Optimizers of dense parameters and rows, their schedule and precision."""
