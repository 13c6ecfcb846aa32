# SPDX-License-Identifier: Apache-2.0
"""Logistic regression of clicks, on one-hot ids and binned numbers."""
