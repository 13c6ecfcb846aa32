# SPDX-License-Identifier: Apache-2.0
"""Versions of a model: the repository, which of them are served, and what changed between them."""
