# SPDX-License-Identifier: Apache-2.0
"""The NVTabular engine for Criteo logs."""
