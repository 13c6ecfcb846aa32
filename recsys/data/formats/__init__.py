# SPDX-License-Identifier: Apache-2.0
"""Layouts of other projects, which are read as they are."""
