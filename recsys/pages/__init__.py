# SPDX-License-Identifier: Apache-2.0
"""Pages in a browser."""
