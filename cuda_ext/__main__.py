# SPDX-License-Identifier: Apache-2.0
"""Tells which implementation runs here, and why; tests the kernels.

    python -m cuda_ext
    python -m cuda_ext --selftest [--device cpu]

With `--selftest` exits 1 if kernels give wrong results or fail.
"""

import argparse
import dataclasses
import json
import sys

import torch

from cuda_ext import library, self_test
from cuda_ext.self_test_cases import FAMILIES


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
            path += "; no CUDA device is here"
        lines.append(f"{device_type}: {path}")
    return "\n".join(lines)


def main() -> int:
    """Describes the implementations, or tests the kernels of a device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selftest", action="store_true", help="test the kernels of a device")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="of the test (here: %(default)s)")
    parser.add_argument("--families", default=",".join(FAMILIES), help="to be tested")
    parser.add_argument("--json", action="store_true", help="run in this process, a line for each")
    options = parser.parse_args()
    families = options.families.split(",")
    if unknown := set(families) - set(FAMILIES):
        parser.error(f"no family {sorted(unknown)}, only {', '.join(FAMILIES)}")
    if not options.selftest:
        print(describe())  # noqa: T201
        return 0
    if options.device.partition(":")[0] not in library.COMPILED_FOR:
        parser.error(library.why_not_compiled(options.device))
    if not options.json:
        outcomes = self_test.run(options.device, families)
        print(self_test.markdown(outcomes))  # noqa: T201
        return 0 if all(outcome.is_right for outcome in outcomes) else 1
    for family in families:
        outcome = self_test.run_family(family, torch.device(options.device))
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)  # noqa: T201
        if outcome.failure:
            return 1  # what follows on a GPU could fail for the same reason
    return 0


if __name__ == "__main__":
    sys.exit(main())
