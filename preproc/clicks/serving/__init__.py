# SPDX-License-Identifier: Apache-2.0
"""Reads raw rows of a request by the rules of a dataset."""
