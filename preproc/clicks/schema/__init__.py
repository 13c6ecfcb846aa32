# SPDX-License-Identifier: Apache-2.0
"""Columns of click logs: fields of a raw row, and schemas."""
