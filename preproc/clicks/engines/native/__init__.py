# SPDX-License-Identifier: Apache-2.0
"""The native engine: a C++ kernel that runs in threads."""
