# SPDX-License-Identifier: Apache-2.0
"""The C++ kernel of the embedded engine and its binding."""
