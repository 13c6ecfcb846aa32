# SPDX-License-Identifier: Apache-2.0
"""The C++ kernel of the native engine and its binding."""
