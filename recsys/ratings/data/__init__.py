# SPDX-License-Identifier: Apache-2.0
"""Histories of a run: opened, split, and as matrices."""
