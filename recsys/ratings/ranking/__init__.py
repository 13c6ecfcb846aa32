# SPDX-License-Identifier: Apache-2.0
"""Ranks of held-out items, and how good they are."""
