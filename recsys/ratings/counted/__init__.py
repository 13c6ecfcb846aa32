# SPDX-License-Identifier: Apache-2.0
"""Models that count instead of being trained step by step."""
