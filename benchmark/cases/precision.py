# SPDX-License-Identifier: Apache-2.0
"""The AUC that bfloat16 and 8 bits cost DLRM.

Each seed trains in float32 and in bfloat16 with the public command line. The float32 model is
tested unchanged, under --amp and with --quantize int8, so every difference compares the same seed
on the same test rows. The real rows are those of the case criteo_sample, if its file exists.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmark.case import Case, Group, Key, Values
from benchmark.cases.criteo_sample import DLRM_FLAGS, default_data, prepare
from benchmark.cases.inference import PRECISIONS
from benchmark.programs import DLRM, run_module, run_training
from recsys.settings import setting

GENERATED_FLAGS = ("--preset=small", "--decay_start_step=150", "--decay_steps=240")
IN_BFLOAT16 = PRECISIONS["bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionCost(Case):
    """Changes of the AUC; a round is a seed."""

    rows: int = setting(600_000, "Generated rows")
    sample: bool = setting(True, "Train on the sample of real rows too")

    @property
    def seeded(self) -> bool:
        """Every training run has a seed."""
        return True

    def config(self) -> dict[str, Any]:
        """Returns the generated rows."""
        return {"rows": self.rows}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields a candidate for each dataset."""
        raw, generated = folder / "raw", folder / "generated"
        run_module("preproc.generate_criteo", f"--output={raw}", f"--rows={self.rows}", "--days=3")
        run_module("preproc.clicks", f"--input={raw}", f"--output={generated}")
        datasets: dict[str, tuple[Path, Sequence[str]]] = {
            "generated": (generated, GENERATED_FLAGS)
        }
        if self.sample and default_data().exists():
            prepare(default_data(), folder / "sample")
            datasets["Kaggle sample"] = (folder / "sample", DLRM_FLAGS)
        yield Group(
            candidates={
                name: functools.partial(changes_of_auc, name, dataset, flags)
                for name, (dataset, flags) in datasets.items()
            }
        )


def changes_of_auc(name: str, dataset: Path, flags: Sequence[str], seed: int) -> Values:
    """Trains with a seed; returns AUC minus float32's."""
    common = (f"--dataset={dataset}", "--baselines=", *flags)
    checkpoints = {}
    for precision, extra in (("float32", ()), ("bfloat16", IN_BFLOAT16)):
        checkpoints[precision] = dataset.with_name(f"{dataset.name}_{precision}_{seed}")
        save = f"--save_checkpoint_path={checkpoints[precision]}"
        run_training(DLRM, "--mode=train", *common, f"--seed={seed}", save, *extra)

    def tested(precision: str, *extra: str) -> dict[str, Any]:
        load = f"--load_checkpoint_path={checkpoints[precision]}"
        return run_training(DLRM, "--mode=test", *common, load, *extra)

    in_8_bits = tested("float32", "--quantize=int8")
    aucs = {
        "bfloat16 inference": tested("float32", *IN_BFLOAT16)["auc"],
        "bfloat16 training": tested("bfloat16", *IN_BFLOAT16)["auc"],
        "int8 inference": in_8_bits["int8_auc"],
    }
    return {
        Key(change, f"change of AUC, {name}"): auc - in_8_bits["auc"]
        for change, auc in aucs.items()
    }


CASE = PrecisionCost
