# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints, and manages the folder of a run."""
