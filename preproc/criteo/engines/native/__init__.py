# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a C++ kernel driven by threads."""
