# SPDX-License-Identifier: Apache-2.0
"""The network, and its checkpoints in other layouts."""
