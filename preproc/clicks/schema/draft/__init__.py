# SPDX-License-Identifier: Apache-2.0
"""Drafts a schema from a sample of a log."""
