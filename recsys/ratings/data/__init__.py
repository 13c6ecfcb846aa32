# SPDX-License-Identifier: Apache-2.0
"""Histories of a run: opens them, splits them, returns them as matrices."""
