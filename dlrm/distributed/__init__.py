# SPDX-License-Identifier: Apache-2.0
"""DLRM on several devices: placement of tables, exchange of vectors."""
