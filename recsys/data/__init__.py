# SPDX-License-Identifier: Apache-2.0
"""Datasets on disk: writer and reader of each format. No torch."""
