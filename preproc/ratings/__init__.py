# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of ratings to sequences of items."""
