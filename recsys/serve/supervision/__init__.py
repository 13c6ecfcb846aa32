# SPDX-License-Identifier: Apache-2.0
"""Keeps a server serving: looks at it, replaces what died, and tells its health."""
