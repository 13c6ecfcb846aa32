# SPDX-License-Identifier: Apache-2.0
"""Histories of users, and training batches of packed tokens."""
