# SPDX-License-Identifier: Apache-2.0
"""From users' histories to batches of packed tokens."""
