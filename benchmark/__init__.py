# SPDX-License-Identifier: Apache-2.0
"""Measures the project's figures, beside its peers, and compares them over time."""
