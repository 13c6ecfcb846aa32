# SPDX-License-Identifier: Apache-2.0
"""Sums of models: a trained model of ratings plus counted ones; in `clicks`, two of clicks."""
