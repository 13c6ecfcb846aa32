# SPDX-License-Identifier: Apache-2.0
"""Forms of raw files: parts of a folder, streams, tables, other forms of text."""
