# SPDX-License-Identifier: Apache-2.0
"""Public logs as users have them: where each is from, how its file is made, and its schema."""
