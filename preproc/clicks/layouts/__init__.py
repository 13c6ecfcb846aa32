# SPDX-License-Identifier: Apache-2.0
"""Writers of the further layouts: parquet and TorchRec's arrays."""
