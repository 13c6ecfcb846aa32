# SPDX-License-Identifier: Apache-2.0
"""Ranks held-out items and measures how good the ranks are."""
