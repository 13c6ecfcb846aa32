# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation of a DLRM."""
