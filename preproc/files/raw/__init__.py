# SPDX-License-Identifier: Apache-2.0
"""Raw files as they come: parts of a folder, streams, tables, other forms of text."""
