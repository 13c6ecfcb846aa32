# SPDX-License-Identifier: Apache-2.0
"""Engines that encode click logs; all write the same bytes."""
