# SPDX-License-Identifier: Apache-2.0
"""The dataset on disk: the writer and the reader of each format side by side. No torch."""
