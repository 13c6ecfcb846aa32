# SPDX-License-Identifier: Apache-2.0
"""What may change the last bits of a training: versions, processor, kernels, threads."""

import functools
import platform
from pathlib import Path
from typing import Any

import torch

from cuda_ext import library
from recsys import __version__
from recsys.train.processes import Processes

ENVIRONMENT = "environment"
"""Key in a checkpoint's state: the environment of the process that wrote it.

Older checkpoints lack it.
"""

_CPU_INFO = Path("/proc/cpuinfo")


def environment(device: torch.device, processes: Processes) -> dict[str, Any]:
    """Returns the environment of this process, without times and paths.

    Args:
        device: device of the model.
        processes: processes of the run.
    """
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "kernels": _kernels(device),
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "processes": processes.world_size,
    }


@functools.cache
def _processor() -> str:
    """Returns the model of the processor; where the system does not name it, its architecture."""
    text = _CPU_INFO.read_text(errors="replace") if _CPU_INFO.is_file() else ""
    fields = (line.partition(":") for line in text.splitlines())
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    return next(named, platform.machine())


def _kernels(device: torch.device) -> str:
    """Returns the kind of the compiled kernels, `pytorch` without them."""
    if device.type not in library.COMPILED_FOR:
        return "pytorch"
    return str(torch.ops.cuda_ext.cpu_instruction_set()) if device.type == "cpu" else device.type
