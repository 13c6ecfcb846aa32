# SPDX-License-Identifier: Apache-2.0
"""The C++ kernel of the native engine: sources, and `binding`, its Python side."""
