# SPDX-License-Identifier: Apache-2.0
"""Files as every program reads and locks them."""
