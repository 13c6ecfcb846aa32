# SPDX-License-Identifier: Apache-2.0
"""Item sequences of users: in memory, on disk, and split.

docs/dataset_format.md describes the files and the rules.
"""
