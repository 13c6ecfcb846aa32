# SPDX-License-Identifier: Apache-2.0
"""Command-line entry `python -m dlrm.model.placement`."""
