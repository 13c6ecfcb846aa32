# SPDX-License-Identifier: Apache-2.0
"""Shows which implementation of the ops runs here, and why: `python -m cuda_ext`."""

import argparse

import torch

from cuda_ext import library


def describe() -> str:
    """Returns one line per device type."""
    lines = [f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not in this build'}"]
    for device_type in ("cpu", "cuda"):
        if device_type not in library.COMPILED_FOR:
            why = library.why_not_compiled(device_type)
            path = f"plain PyTorch, without compiled kernels: {why}"
        elif device_type == "cpu":
            path = f"compiled kernels ({torch.ops.cuda_ext.cpu_instruction_set()})"
        else:
            path = "compiled kernels"
        if device_type == "cuda" and not torch.cuda.is_available():
            path += "; this machine has no CUDA device"
        lines.append(f"{device_type}: {path}")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(describe())  # noqa: T201
