# SPDX-License-Identifier: Apache-2.0
"""Layouts of other projects, read without conversion."""
