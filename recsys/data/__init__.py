# SPDX-License-Identifier: Apache-2.0
"""Dataset formats, each with writer and reader; no torch."""
