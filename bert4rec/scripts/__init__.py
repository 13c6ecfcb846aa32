# SPDX-License-Identifier: Apache-2.0
"""The command lines; flags are read here and nowhere else."""
