# SPDX-License-Identifier: Apache-2.0
"""How every program reads, writes and locks files."""
