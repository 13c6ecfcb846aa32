# SPDX-License-Identifier: Apache-2.0
"""Deployment of a DLRM: export from a checkpoint, serving, scoring."""
