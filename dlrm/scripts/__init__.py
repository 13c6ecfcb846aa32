# SPDX-License-Identifier: Apache-2.0
"""DLRM's command-line programs; only they read flags."""
