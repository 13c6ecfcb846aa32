# SPDX-License-Identifier: Apache-2.0
"""What `train dlrm --deterministic` costs: a training with it and without it, in turns."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmark.case import Case, Group, Key, Values
from benchmark.programs import DLRM, run_training
from recsys.settings import require_positive, setting

MODELS = {
    "small": ("--embedding_dim=16", "--bottom_mlp_sizes=64,16", "--top_mlp_sizes=128,64,1"),
    "big": (
        *("--embedding_dim=128", "--bottom_mlp_sizes=512,256,128"),
        "--top_mlp_sizes=1024,1024,512,256,1",
    ),
}
FLAGS = (
    *("--dataset_type=synthetic_gpu", "--synthetic_distribution=zipf", "--base_device=cpu"),
    *("--synthetic_dataset_num_entries=100000000", "--test_after=2", "--baselines="),
    f"--synthetic_dataset_table_sizes={','.join(['20000'] * 26)}",
)
OTHERWISE, DETERMINISTIC = "without", "with --deterministic"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeterministicTraining(Case):
    """Throughput of training whose bytes do not depend on the number of processes."""

    repeats: ClassVar[int] = 5

    batch_size: int = setting(2048, "Samples of a step")
    steps: int = setting(60, "Steps of a run of the big model; of the small one, ten times as many")

    def __post_init__(self) -> None:
        """Refuses counts below one."""
        require_positive(self, "batch_size", "steps")

    def config(self) -> dict[str, Any]:
        """Returns the flags of the training."""
        return {"DLRM": " ".join(FLAGS), "batch size": self.batch_size, "steps": self.steps}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields the models; their two runs take turns."""
        for model in MODELS:
            yield self._group(model)

    def _group(self, model: str) -> Group:
        steps = self.steps * (10 if model == "small" else 1)

        def measure(name: str, more: tuple[str, ...], _seed: int) -> Values:
            run = (*FLAGS, *MODELS[model], f"--batch_size={self.batch_size}", *more)
            counted = (f"--max_steps={steps}", f"--benchmark_warmup_steps={steps // 6}")
            figures = run_training(DLRM, "--mode=train", *run, *counted)
            return {Key(model, name, "samples/s"): figures["average_train_throughput"]}

        candidates = {
            name: functools.partial(measure, name, more)
            for name, more in ((OTHERWISE, ()), (DETERMINISTIC, ("--deterministic",)))
        }

        def derive(values: Mapping[str, Values]) -> Values:
            without, with_it = (
                values[name][Key(model, name, "samples/s")] for name in (OTHERWISE, DETERMINISTIC)
            )
            return {Key(model, "time of a step, with it over without"): without / with_it}

        return Group(candidates=candidates, derive=derive)


CASE = DeterministicTraining
