# SPDX-License-Identifier: Apache-2.0
"""Measurements of DLRM: quality, training, input, inference, beside TorchRec."""
