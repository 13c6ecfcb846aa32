# SPDX-License-Identifier: Apache-2.0
"""NVTabular in its own environment: settings, process, worker."""
