# SPDX-License-Identifier: Apache-2.0
"""Command lines of BERT4Rec; flags are read here and nowhere else."""
