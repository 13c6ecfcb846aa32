# SPDX-License-Identifier: Apache-2.0
"""Generated click logs and ratings."""
