# SPDX-License-Identifier: Apache-2.0
"""Measurements of one part at a time."""
