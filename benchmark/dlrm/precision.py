# SPDX-License-Identifier: Apache-2.0
"""Measures the AUC that bfloat16 and 8 bits cost DLRM.

    python -m benchmark.dlrm.precision --seeds 5

Each seed trains in float32 and in bfloat16 by the public command line. The float32 model is tested
as it is, under --amp and with --quantize int8, so every difference is one of the same seed on the
same test rows. Real rows are those of benchmark.dlrm.criteo_sample.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmark.dlrm import criteo_sample
from benchmark.dlrm.inference import PRECISIONS
from benchmark.dlrm.program import run_dlrm
from benchmark.record import RESULTS, make_record, write_records

GENERATED_ROWS = 600_000
GENERATED_FLAGS = ("--preset=small", "--decay_start_step=150", "--decay_steps=240")
IN_BFLOAT16 = PRECISIONS["bfloat16"]
CHANGES = ("bfloat16 inference", "bfloat16 training", "int8 inference")


def prepare_generated(folder: Path) -> Path:
    """Makes a dataset of generated clicks; returns its folder."""
    raw, dataset = folder / "raw", folder / "generated"
    generator = ("preproc.generate_criteo", f"--output={raw}", f"--rows={GENERATED_ROWS}")
    for module, *arguments in (
        (*generator, "--days=3"),
        ("preproc.criteo", f"--input={raw}", f"--output={dataset}"),
    ):
        command = [sys.executable, "-m", module, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dataset


def changes_of_auc(
    dataset: Path, folder: Path, flags: Sequence[str], seed: int
) -> dict[str, float]:
    """Trains with a seed; returns AUC minus float32's for each of `CHANGES`."""
    common = (f"--dataset={dataset}", *flags)
    checkpoints = {}
    for name, precision in (("float32", ()), ("bfloat16", IN_BFLOAT16)):
        checkpoints[name] = folder / f"{dataset.name}_{name}_{seed}"
        save = f"--save_checkpoint_path={checkpoints[name]}"
        run_dlrm("--mode=train", *common, f"--seed={seed}", save, *precision)
    test = ("--mode=test", *common)
    plain = f"--load_checkpoint_path={checkpoints['float32']}"
    in_8_bits = run_dlrm(*test, plain, "--quantize=int8")
    half = run_dlrm(*test, plain, *IN_BFLOAT16)
    trained = run_dlrm(*test, f"--load_checkpoint_path={checkpoints['bfloat16']}", *IN_BFLOAT16)
    aucs = (half["auc"], trained["auc"], in_8_bits["int8_auc"])
    return {name: auc - in_8_bits["auc"] for name, auc in zip(CHANGES, aucs, strict=True)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, prints the differences and records them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=criteo_sample.default_data())
    parser.add_argument("--seeds", type=int, default=5, help="trainings, with seeds 1, 2, ...")
    parser.add_argument("--results", type=Path, default=RESULTS / "precision.jsonl")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        datasets: dict[str, tuple[Path, Sequence[str]]] = {
            "generated": (prepare_generated(folder), GENERATED_FLAGS)
        }
        if options.data.exists():
            criteo_sample.prepare(options.data, folder / "sample")
            datasets["Kaggle sample"] = (folder / "sample", criteo_sample.DLRM_FLAGS)
        records = []
        for name, (dataset, flags) in datasets.items():
            measured = [
                changes_of_auc(dataset, folder, flags, seed) for seed in range(1, options.seeds + 1)
            ]
            for change in CHANGES:
                values = [of_seed[change] for of_seed in measured]
                mean = sum(values) / len(values)
                shown = ", ".join(f"{value:+.6f}" for value in values)
                print(f"{name}, {change}: mean {mean:+.6f} ({shown})", flush=True)
                records.append(
                    make_record(
                        *("precision", change, f"change of AUC, {name}", values),
                        unit="",
                        direction="higher",
                        config={"seeds": options.seeds},
                        seeds=range(1, options.seeds + 1),
                    )
                )
    write_records(options.results, records)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
