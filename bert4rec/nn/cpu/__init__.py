# SPDX-License-Identifier: Apache-2.0
"""Cache-blocked layers of BERT4Rec for CPUs."""
