# SPDX-License-Identifier: Apache-2.0
"""Trains the best model for a dataset: a network, a simple model, or their sum.

    python -m recsys_recipes.train_auto --dataset data/ml-1m --output data/ml-1m-run

The network is trained with its preset auto, in the folder `trained` of the
run. Then validation chooses simple models and their weights. The same command
continues after an interruption.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from recsys.auto import AutoConfig
from recsys.data.manifest import LOG_KINDS, MANIFEST_FILE, Manifest
from recsys.errors import UserError
from recsys.flags import values_from_flags
from recsys.program import new_flags, run_command, run_recipe
from recsys.settings import REQUIRED, Sections, require_threads, section_from_dict, setting
from recsys_recipes.models import ModelSpec, model_of, network_of

TRAINED = "trained"
"""Folder of the network within that of the run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainAutoSettings:
    """Settings of this program."""

    dataset: Path = setting(REQUIRED, "Folder that `recsys-recipes prepare` made")
    output: Path = setting(REQUIRED, "Folder of the run")
    base_device: str = setting("auto", "Device of the network: auto, cuda or cpu")
    num_threads: int | None = setting(None, "CPU threads; by default one per core")

    def __post_init__(self) -> None:
        """Refuses an invalid number of threads."""
        require_threads(self, "num_threads")


SECTIONS: Sections = {TrainAutoSettings: "train_auto", AutoConfig: "auto"}


def train(settings: TrainAutoSettings, budget: str) -> int:
    """Trains, chooses and tests with two commands, which it prints.

    Args:
        settings: settings of this program.
        budget: approximate time limit of the network's training, with its unit.

    Returns:
        The exit status of the command that failed; 0 if none did.

    Raises:
        UserError: the dataset is refused, or the folder holds another run.
    """
    if not (settings.dataset / MANIFEST_FILE).is_file():
        raise UserError(
            f"`dataset` {settings.dataset}: no prepared dataset (no {MANIFEST_FILE}). Make one "
            "from the raw file with `recsys-recipes prepare`, then name its output folder",
            setting="dataset",
        )
    of_clicks = Manifest.load(settings.dataset).kind in LOG_KINDS
    model = network_of("clicks" if of_clicks else "ratings")
    network = settings.output / TRAINED
    _check_unused(settings.output, network, model)
    shared = [f"--dataset={settings.dataset}"]
    if settings.num_threads is not None:
        shared.append(f"--num_threads={settings.num_threads}")
    of_network = ["--resume", "--preset=auto", f"--budget={budget}", "--baselines="]
    device = f"--base_device={settings.base_device}"
    return _run(model.name, network, *shared, device, *of_network) or _run(
        model.blend, settings.output, *shared, f"--blend_of={network}"
    )


def _check_unused(output: Path, network: Path, model: ModelSpec) -> None:
    """Refuses a folder that holds a run, or a network of other data."""
    if not output.exists():
        return
    from recsys.train.saving.run_folder import CheckpointFolder  # with torch

    if CheckpointFolder(output).latest() is not None:
        raise UserError(
            f"`output` {output}: holds a finished run; `recsys-recipes test --checkpoint {output}` "
            "tests it. To train another, give another folder",
            setting="output",
        )
    if CheckpointFolder(network).latest() is not None and model_of(network) is not model:
        raise UserError(
            f"`output` {output}: holds a run of other data, {model_of(network).title} in "
            f"{network}; give another folder",
            setting="output",
        )


def _run(model: str, output: Path, *given: str) -> int:
    """Runs a training command; returns its exit status."""
    return run_recipe("train", model, *given, f"--output={output}")


def run(flag_values: flags.FlagValues) -> int:
    """Runs the program with parsed flags; returns the exit status."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    settings = section_from_dict(TrainAutoSettings, values)
    section_from_dict(AutoConfig, values)
    return train(settings, str(flag_values["budget"].value))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run_command(run, new_flags(SECTIONS), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
