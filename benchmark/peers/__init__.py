# SPDX-License-Identifier: Apache-2.0
"""The same job in other software, a module each."""
