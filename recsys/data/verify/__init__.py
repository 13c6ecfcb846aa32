# SPDX-License-Identifier: Apache-2.0
"""Verification of a dataset on disk against its spec and manifest."""
