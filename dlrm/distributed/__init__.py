# SPDX-License-Identifier: Apache-2.0
"""DLRM on several devices: placement, exchange, batches, gradients."""
