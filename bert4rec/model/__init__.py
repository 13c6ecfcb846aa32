# SPDX-License-Identifier: Apache-2.0
"""The network, on one device and on many."""
