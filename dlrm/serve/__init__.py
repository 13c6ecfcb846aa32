# SPDX-License-Identifier: Apache-2.0
"""Deploys a DLRM: exports a checkpoint, serves it, scores it."""
