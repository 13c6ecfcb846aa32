# SPDX-License-Identifier: Apache-2.0
"""Measurements of BERT4Rec: quality, steps, adapters, beside RecBole."""
