# SPDX-License-Identifier: Apache-2.0
"""Trains this project's DLRM with the flags of TorchRec's NVTabular example.

torchrun --nproc_per_node 8 -m dlrm.scripts.train_torchrec \
    --binary_path /data/criteo_binary/split --learning_rate 1.0 --batch_size 256

Its flags become settings of DLRM; every flag of `dlrm.scripts.main` works too.
"""

import dataclasses
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from dlrm.config import DlrmConfig
from dlrm.scripts import flags as dlrm_flags
from recsys import flags as settings_flags
from recsys import program
from recsys.errors import UserError
from recsys.settings import Not, setting
from recsys.train.run_log import Resumed, RunLog

if TYPE_CHECKING:  # these import torch, which takes seconds; a typo is refused before
    from dlrm.train.evaluate import SplitScores
    from recsys.train.processes import Processes

NUM_CATEGORICAL = 26


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TorchRecFlags:
    """Flags that have another name in TorchRec's example, with its defaults."""

    binary_path: str = setting(
        "/data/criteo_1tb/criteo_binary/split/",
        "Folder with train/, validation/ and test/: --dataset",
    )
    num_embeddings: int | None = setting(
        None,
        "Rows of each of the 26 tables, unless --num_embeddings_per_feature is given; by default "
        "the cardinalities of the dataset's feature specification",
    )
    dense_arch_layer_sizes: tuple[int, ...] = setting(
        (512, 256, 128), "Layer sizes of the dense arch: --bottom_mlp_sizes"
    )
    over_arch_layer_sizes: tuple[int, ...] = setting(
        (1024, 1024, 512, 256, 1), "Layer sizes of the over arch: --top_mlp_sizes"
    )
    learning_rate: float = setting(15.0, "Constant learning rate: --lr")
    change_lr: bool = setting(False, "Change the learning rate once during training")
    lr_change_point: float = setting(
        0.8,
        "Fraction of the steps of all epochs after which --change_lr changes the learning rate",
        used_with={"change_lr": Not(False)},
    )
    lr_after_change_point: float = setting(
        3.0,
        "Learning rate after the change by --change_lr",
        used_with={"change_lr": Not(False)},
    )
    validation_freq_within_epoch: int = setting(
        10000, "Steps between evaluations on the validation split during an epoch: --test_freq"
    )
    throughput_check_freq_within_epoch: int = setting(
        1000, "Steps between prints of the throughput: --print_freq"
    )
    adagrad: bool = setting(
        False, "Use Adagrad, row-wise in the tables, instead of SGD: --optimizer rowwise_adagrad"
    )


SECTIONS: dict[type, str] = {TorchRecFlags: "torchrec"}

SAME_AS = {
    "binary_path": "dataset",
    "dense_arch_layer_sizes": "bottom_mlp_sizes",
    "over_arch_layer_sizes": "top_mlp_sizes",
    "learning_rate": "lr",
    "validation_freq_within_epoch": "test_freq",
    "throughput_check_freq_within_epoch": "print_freq",
}
"""{TorchRec's flag: DLRM's name of the same setting}."""

DEFAULTS = {
    "batch_size": 32,
    "lr": 15.0,
    "test_freq": 10000,
    "print_freq": 1000,
    "warmup_steps": 0,
    "decay_steps": 0,
    "eval_split": "validation",
    "baselines": (),  # the example has no baselines
}
"""Defaults that differ from those of `dlrm.scripts.main`."""


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of TorchRec's example, and those of DLRM."""
    dlrm_flags.define_flags(flag_values, **DEFAULTS)
    settings_flags.define_flags(flag_values, SECTIONS)


def config_from_flags(flag_values: flags.FlagValues) -> DlrmConfig:
    """Builds the config from parsed flags; ignores --change_lr.

    Raises:
        UserError: a value is refused, or two flags contradict each other.
    """
    values, explicit, preset = dlrm_flags.values_from_flags(flag_values)
    theirs, given = settings_flags.values_from_flags(flag_values, SECTIONS)
    with preset.located():
        for flag, name in SAME_AS.items():
            _take(values, explicit, name, theirs[flag], f"--{flag}", flag in given)
        if theirs["adagrad"]:
            _take(values, explicit, "optimizer", "rowwise_adagrad", "--adagrad", True)
    if theirs["num_embeddings"] is not None and not values["num_embeddings_per_feature"]:
        values["num_embeddings_per_feature"] = (theirs["num_embeddings"],) * NUM_CATEGORICAL
    if not 0 <= theirs["lr_change_point"] <= 1:
        raise UserError(f"--lr_change_point must lie in [0, 1], got {theirs['lr_change_point']}")
    with preset.located():
        return DlrmConfig.from_dict(values, frozenset(explicit))


def _take(
    values: dict[str, Any], explicit: set[str], name: str, value: Any, flag: str, given: bool
) -> None:
    """Sets a setting from TorchRec's flag, unless DLRM's was given."""
    if name not in explicit:
        values[name] = value
        if given:
            explicit.add(name)
    elif given and values[name] != value:
        raise UserError(f"{flag} and `{name}` are the same setting; give one of them", setting=name)


def with_rate_change(config: DlrmConfig, steps: int, point: float, rate: float) -> DlrmConfig:
    """Returns the config with a learning rate that changes once (--change_lr).

    Args:
        config: settings of the run.
        steps: number of steps of all epochs.
        point: fraction of these steps, in [0, 1], after which the rate changes.
        rate: learning rate after the change.
    """
    start = int(steps * Fraction(str(point)))  # .29 of 100 is 29
    decay = {"decay_start_step": start, "decay_steps": 1, "decay_end_lr": rate}
    return DlrmConfig.from_dict(config.to_dict() | decay, config.explicit)


def throughput_lines(step: int, batch_size: int, step_time: float) -> list[str]:
    """Formats the throughput as TorchRec's example prints it.

    Args:
        step: steps of the run so far.
        batch_size: samples per step, over all ranks.
        step_time: mean seconds per step since the last print, including waiting for data.
    """
    throughput = {
        "throughput-throughput|total_examples": step * batch_size,
        "throughput-throughput|window_throughput": batch_size / step_time,
    }
    return [f"step {step}", f"throughput {throughput}"]


def quality_lines(split: str, metrics: Mapping[str, float]) -> list[str]:
    """Formats the metrics of a split as TorchRec's example prints them."""
    return [
        f"AUROC over {split} set: {metrics['auc']}.",
        f"Accuracy over {split} set: {metrics['accuracy']}.",
        f"binary cross entropy loss over {split} set {metrics['log_loss']}",
    ]


class PrintedLog(RunLog):
    """A run log that also prints each record as TorchRec's example does.

    Args:
        path: the log file; None (all ranks except the first) neither writes nor prints.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._prints = path is not None

    def begin(self, config: Mapping[str, Any], resumed: Resumed | None = None) -> None:
        """Begins the log with every setting of the run."""
        self._batch_size, self._split = config["batch_size"], config["eval_split"]
        super().begin(config, resumed)

    def record(self, step: tuple[int, ...], data: Mapping[str, Any]) -> None:
        """Records metrics or timings and prints them."""
        super().record(step, data)
        lines = []
        if not self._prints:
            return
        if "step_time" in data:
            lines = throughput_lines(step[-1], self._batch_size, data["step_time"])
        elif step and "auc" in data:
            lines = quality_lines(self._split, data)
        for line in lines:
            program.print_line(line)


def with_all_processes(config: DlrmConfig, processes: "Processes") -> DlrmConfig:
    """Multiplies TorchRec's batch size, which is per rank, by the number of ranks."""
    batch_size = config.data.batch_size * processes.world_size
    return DlrmConfig.from_dict(config.to_dict() | {"batch_size": batch_size}, config.explicit)


def run(flag_values: flags.FlagValues) -> None:
    """Trains a DLRM, then scores the test split.

    Raises:
        UserError: a flag or the dataset is refused.
    """
    config = config_from_flags(flag_values)
    if config.run.mode != "train":
        raise UserError(
            f"--mode {config.run.mode}: this program only trains; use python -m dlrm.scripts.main"
        )
    dlrm_flags.refuse_unused(flag_values, config)
    theirs, _ = settings_flags.values_from_flags(flag_values, SECTIONS)
    settings_flags.refuse_unused(flag_values, theirs, SECTIONS)
    config.require_inputs()
    from dlrm.recipe import DlrmRecipe, join_run
    from recsys.train.loop import LoopConfig
    from recsys.train.run import Run, set_up_machine

    with join_run(config) as processes:
        config = with_all_processes(config, processes)
        machine = set_up_machine(config, program.print_with_flags, processes)
        recipe = DlrmRecipe.open(config, machine)
        if flag_values.change_lr:
            epochs = LoopConfig(epochs=config.run.epochs)
            changed = with_rate_change(
                recipe.config,
                epochs.steps(recipe.train_batches().num_batches),
                flag_values.lr_change_point,
                flag_values.lr_after_change_point,
            )
            recipe = dataclasses.replace(recipe, config=changed)
        result = Run.of(recipe, machine, PrintedLog).fit()
        if processes.is_first:
            program.print_how_to_continue(
                result.reason,
                result.state.step,
                config.checkpoint_folder,
                "dlrm.scripts.train_torchrec",
            )
        if result.reason.startswith("SIG"):
            return
        machine.print_line(
            f"Testing the model of the last step, {result.state.step}, as TorchRec's example does"
        )
        scores = recipe.score("test")
        if processes.is_first:
            _print_test_split(scores)


def _print_test_split(scores: "SplitScores") -> None:
    from dlrm.train.health import metric_lines

    for line in quality_lines("test", dataclasses.asdict(scores.metrics)):
        program.print_line(line)
    for line in metric_lines(scores.metrics, "test"):
        program.print_with_flags(line)


def spelled_with_two_dashes(arguments: list[str]) -> list[str]:
    """Turns `---adagrad`, the spelling on TorchRec's page, into `--adagrad`."""
    return [a[1:] if a.startswith("---") else a for a in arguments]


if __name__ == "__main__":
    sys.argv[1:] = spelled_with_two_dashes(sys.argv[1:])
    _values = program.new_flags()
    define_flags(_values)
    program.start(run, _values)
