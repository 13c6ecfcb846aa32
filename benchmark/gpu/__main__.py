# SPDX-License-Identifier: Apache-2.0
"""Measures what needs a GPU, in less than nine minutes.

    FORCE_CUDA=1 python setup.py build_ext --inplace
    python -m benchmark.gpu

Tests the kernels, finds whatever makes the host wait for the device, and measures training,
inference, a profile, the AUC of each precision, plain PyTorch, BERT4Rec and every op by itself. The
tables are those of Criteo's Terabyte log at frequency limit 15 (17 GB). Each part is written when
it is done: a second call goes on after the last one. Needs no package index and no data.
"""

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu.parts import PARTS, Setting
from benchmark.kernels.gpu_cases import Sizes
from benchmark.machine import commit, hardware, versions
from benchmark.record import RESULTS
from cuda_ext import library
from dlrm.scripts.plan_placement import CRITEO_LIMIT_15
from recsys.data.whole_file import whole_file

_SMALL_TABLES = (100, 40, 3, 7)


def small_setting(device: torch.device, results: Path) -> Setting:
    """Returns sizes that take seconds on a CPU."""
    sizes = Sizes(
        tables=3, rows=40, dim=16, batch_sizes=(8,), copy_bytes=1 << 16, matmul_size=16,
        repeats=2, calls=1,
    )  # fmt: skip
    tables = tuple(_SMALL_TABLES[i % len(_SMALL_TABLES)] for i in range(26))
    return Setting(
        device=device, table_sizes=tables, batch_sizes=(64,), inference_batch_sizes=(1, 8),
        calls=1, repeats=2, kernel_sizes=sizes, kernels_limit_s=20, auc_rows=2_000,
        bert4rec_sizes=((16, 1, 10),),
        results=results,
    )  # fmt: skip


def read(target: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that an earlier call measured here."""
    try:
        before: dict[str, Any] = json.loads(target.read_text())
    except (OSError, ValueError):
        return {}
    same = all(before.get(key) == value for key, value in about.items())
    return dict(before["parts"]) if same else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures missing parts; returns 1 after failures, 3 without time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cpu tries the program, with --small")
    parser.add_argument("--small", action="store_true", help="sizes that take seconds on a CPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="of these: %(default)s")
    parser.add_argument("--limit_s", type=float, default=520, help="start no part after this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of gpu.json")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is here; --device cpu --small tries the program")
    wanted = options.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}, only {', '.join(PARTS)}")
    if device.type not in library.COMPILED_FOR:
        parser.error(f"no kernels: {library.why_not_compiled(device.type)}")
    setting = (
        small_setting(device, options.results)
        if options.small
        else Setting(device=device, table_sizes=CRITEO_LIMIT_15, results=options.results)
    )
    target, started = options.results / "gpu.json", time.perf_counter()
    about = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "commit": commit(),
        "versions": versions(),
        "small": options.small,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    parts = read(target, about)
    status = 0
    for name in wanted:
        if name in parts and "failed" not in parts[name]:
            print(f"{name}: measured before")
            continue
        if time.perf_counter() - started > options.limit_s:
            print(f"{name}: no time left; call again to go on")
            status = status or 3
            continue
        print(f"== {name}", flush=True)
        began = time.perf_counter()
        try:
            parts[name] = PARTS[name](setting)
        except Exception as error:  # noqa: BLE001
            # The other parts are measured all the same.
            traceback.print_exc()
            parts[name] = {"failed": f"{type(error).__name__}: {error}"}
            status = 1
        parts[name]["seconds"] = round(time.perf_counter() - began, 1)
        with whole_file(target) as file:
            result = {**about, "hardware": hardware(), "parts": parts}
            file.write(json.dumps(result, indent=1).encode() + b"\n")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return status


if __name__ == "__main__":
    sys.exit(main())
