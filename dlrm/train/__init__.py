# SPDX-License-Identifier: Apache-2.0
"""Runs: training, testing, measuring inference."""
