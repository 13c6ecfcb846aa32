# SPDX-License-Identifier: Apache-2.0
"""Input files, work folders, progress and rejected rows of every command."""
