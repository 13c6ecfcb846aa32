# SPDX-License-Identifier: Apache-2.0
"""Settings of a run with NVTabular, for every command."""

from typing import Literal, get_args

NvtabularDevice = Literal["auto", "cpu", "gpu"]
NVTABULAR_DEVICES: tuple[NvtabularDevice, ...] = get_args(NvtabularDevice)
