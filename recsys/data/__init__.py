# SPDX-License-Identifier: Apache-2.0
"""Dataset formats, each with a writer and a reader; nothing here imports torch."""
