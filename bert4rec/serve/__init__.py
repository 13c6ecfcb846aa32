# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to a network with plain tensor inputs, and what answers requests with it."""
