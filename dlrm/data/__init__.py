# SPDX-License-Identifier: Apache-2.0
"""Datasets to batches on the device."""
