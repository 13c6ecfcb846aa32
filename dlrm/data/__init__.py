# SPDX-License-Identifier: Apache-2.0
"""Batches of samples, read from a dataset or generated."""
