# SPDX-License-Identifier: Apache-2.0
"""Models that are fitted in one call instead of step by step."""
