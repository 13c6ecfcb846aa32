# SPDX-License-Identifier: Apache-2.0
"""Datasets that grow by a day: their folders and categories."""
