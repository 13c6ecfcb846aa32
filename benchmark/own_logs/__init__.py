# SPDX-License-Identifier: Apache-2.0
"""Public logs as users have them: the source of each, how its file is made, and its schema."""
