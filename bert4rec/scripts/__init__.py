# SPDX-License-Identifier: Apache-2.0
"""Command lines of BERT4Rec; only these modules read flags."""
