# SPDX-License-Identifier: Apache-2.0
"""The same complete job in other software, each in its one module, run in a process of its own."""
