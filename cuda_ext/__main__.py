# SPDX-License-Identifier: Apache-2.0
"""`python -m cuda_ext`: which implementation of the ops runs on this machine, and why."""

import torch

from cuda_ext import library


def describe() -> str:
    """Returns one line per device type."""
    reason = library.load_error()
    lines = [f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not in this build'}"]
    for device_type in ("cpu", "cuda"):
        if library.has_kernels(device_type):
            path = "compiled kernels"
            if device_type == "cpu":
                path += f" ({torch.ops.cuda_ext.cpu_instruction_set()})"
        else:
            why = reason or "they were built without CUDA: `FORCE_CUDA=1 make build`, given nvcc"
            path = f"plain PyTorch, without compiled kernels: {why}"
        if device_type == "cuda" and not torch.cuda.is_available():
            path += "; no CUDA device is here"
        lines.append(f"{device_type}: {path}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe())  # noqa: T201
