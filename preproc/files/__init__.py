# SPDX-License-Identifier: Apache-2.0
"""Input files, working folders, progress and rejected rows of every command."""
