# SPDX-License-Identifier: Apache-2.0
"""The DLRM network, and its weights in checkpoints."""
