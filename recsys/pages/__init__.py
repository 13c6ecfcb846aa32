# SPDX-License-Identifier: Apache-2.0
"""Pages of charts, each a single HTML file without scripts."""
