# SPDX-License-Identifier: Apache-2.0
"""NVTabular in a process with its own environment."""
