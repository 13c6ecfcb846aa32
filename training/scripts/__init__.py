# SPDX-License-Identifier: Apache-2.0
"""What the command lines of every model share."""
