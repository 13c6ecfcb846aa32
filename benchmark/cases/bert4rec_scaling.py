# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec of 5M to 430M parameters, and options.

    python -m benchmark.run bert4rec_scaling --items 20000 --batch 16 --steps 20
    python -m benchmark.run bert4rec_scaling --dataset data/electronics --train_steps 20000

Every figure comes from --run_benchmark of the training program; runs take turns, each in its own
process. The first half runs the presets of all sizes, the second runs --table_size with each
option. Parameters are counted with the catalogue of the run: --items generated items, or those of
--dataset. Quality after --train_steps is measured only with --dataset.
"""

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from benchmark.case import Case, Group
from benchmark.programs import BERT4REC, STEP_FIGURES, Figure, run_module, training_group
from recsys.errors import UserError
from recsys.settings import setting

PRESETS = {
    "5m": "5m",
    "85m": "scaling-85m",
    "130m": "scaling-130m",
    "430m": "scaling-430m",
}
OPTIONS = {
    "baseline": (),
    "AMP": ("--amp",),
    "compile": ("--torch_compile",),
    "AMP + compile": ("--amp", "--torch_compile"),
    "activation checkpointing": ("--activation_checkpointing",),
}
"""Row of the table -> flags on top of those of the baseline."""

GRAPHS = {
    "graphs": ("--cuda_graphs",),
    "AMP + graphs": ("--cuda_graphs", "--amp"),
    "AMP + compile + graphs": ("--cuda_graphs", "--amp", "--torch_compile"),
}
"""Rows that only a GPU has."""

ADAPTERS = {
    "LoRA": ("--adapter=lora",),
    "iLoRA": ("--adapter=ilora",),
    "iLoRA + AMP": ("--adapter=ilora", "--amp"),
}
"""Rows of runs that start from a checkpoint, which a run of one step saves."""

PARAMETERS = "parameters"
FIGURES = {PARAMETERS: Figure(PARAMETERS), **STEP_FIGURES}
QUALITY = {
    "test_full_hr@10": Figure("HR@10, all items"),
    "test_full_ndcg@10": Figure("NDCG@10, all items"),
}
MEAN_LENGTH = 10
"""Items of a generated history; Amazon Electronics has about nine."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scaling(Case):
    """Training steps of all sizes, and of one size with each option."""

    repeats: ClassVar[int] = 3
    lower: ClassVar[frozenset[str]] = frozenset((PARAMETERS,))

    sizes: tuple[str, ...] = setting(tuple(PRESETS), "Sizes of the presets")
    table_size: str = setting("130m", "Size to measure with each option; empty measures no options")
    items: int = setting(20_000, "Items of the generated catalogue")
    dataset: Path | None = setting(None, "Prepared dataset, instead of a generated one")
    train_steps: int = setting(0, "Steps of a run with --dataset")
    batch: int = setting(16, "Histories per step")
    steps: int = setting(20, "Measured steps of each run")
    warmup: int = setting(5, "Steps before the measured ones")
    graphs: bool = setting(False, "Measure CUDA graphs too, which need a GPU")
    program_flags: str = setting("", "Further flags of the program, separated by spaces")

    def __post_init__(self) -> None:
        """Refuses unknown sizes."""
        for size in (*self.sizes, *filter(None, [self.table_size])):
            if size not in PRESETS:
                raise UserError(f"there is no size {size}; choose from {', '.join(PRESETS)}")

    def config(self) -> dict[str, Any]:
        """Returns the settings."""
        config: dict[str, Any] = {"batch": self.batch, "steps": self.steps}
        if self.dataset is None:
            config["items"] = self.items
        else:
            config |= {"dataset": self.dataset.name, "train steps": self.train_steps}
        return config | ({"flags": self.program_flags} if self.program_flags else {})

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the sizes, then the options."""
        folder.mkdir(parents=True, exist_ok=True)
        flags = self._flags()
        sizes = {size: [f"--config={PRESETS[size]}", *flags] for size in self.sizes}
        quality = {} if self.dataset is None else QUALITY
        yield training_group(BERT4REC, sizes, FIGURES | quality)
        if not self.table_size:
            return
        preset, base = f"--config={PRESETS[self.table_size]}", folder / "run"
        once = ("--norun_benchmark", "--max_steps=1", f"--export_root={base}")
        run_module(BERT4REC, preset, *flags, *once, f"--log_path={folder / 'log.json'}")
        adapted = f"--load_checkpoint_path={base}"
        options = OPTIONS | (GRAPHS if self.graphs else {})
        rows = {name: [preset, *flags, *more] for name, more in options.items()}
        rows |= {name: [preset, *flags, adapted, *more] for name, more in ADAPTERS.items()}
        named = {f"{self.table_size} {name}": row for name, row in rows.items()}
        yield training_group(BERT4REC, named, FIGURES)

    def _flags(self) -> list[str]:
        """Returns the flags that all runs share."""
        steps = self.warmup + self.steps
        shared = [
            *(f"--train_batch_size={self.batch}", "--num_epochs=1000000"),
            *("--run_benchmark", f"--benchmark_steps={self.steps}"),
            f"--benchmark_warmup_steps={self.warmup}",
        ]
        if self.dataset is not None:
            steps = max(steps, self.train_steps)
            own = [f"--dataset_path={self.dataset}", f"--max_steps={steps}"]
        else:
            users = max(4 * self.batch, 64)
            own = [
                *(f"--max_steps={steps}", "--test_freq=1000000", "--dataset_name=random"),
                "--baselines=",  # fitting ease to many items takes longer than the steps
                *(f"--random_item_count={self.items}", f"--random_user_count={users}"),
                f"--random_size={users * MEAN_LENGTH}",
            ]
        return [*shared, *own, *shlex.split(self.program_flags)]


CASE = Scaling
