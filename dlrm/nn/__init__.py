# SPDX-License-Identifier: Apache-2.0
"""Layers of DLRM: MLPs, embeddings and interactions."""
