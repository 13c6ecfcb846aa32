# SPDX-License-Identifier: Apache-2.0
"""Further layouts of a click dataset: parquet and TorchRec's arrays."""
