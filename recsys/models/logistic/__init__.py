# SPDX-License-Identifier: Apache-2.0
"""The logistic regression of clicks, on one-hot ids and binned numbers."""
