# SPDX-License-Identifier: Apache-2.0
"""Writers of the other layouts: parquet and TorchRec's arrays."""
