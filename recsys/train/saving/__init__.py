# SPDX-License-Identifier: Apache-2.0
"""Writing of checkpoints, and the folder of a run."""
