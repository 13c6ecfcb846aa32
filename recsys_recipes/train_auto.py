# SPDX-License-Identifier: Apache-2.0
"""Trains what is best for a dataset: a network, a simple model, or the two added.

    python -m recsys_recipes.train_auto --dataset data/ml-1m --output data/ml-1m-run

The network is trained with its preset auto, in the folder `trained` of the
run; then validation chooses a simple model and its weight in the sum. The same
command continues after an interruption.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from recsys.auto import AutoConfig
from recsys.data.manifest import LOG_KINDS, Manifest
from recsys.flags import values_from_flags
from recsys.program import new_flags, print_line, run_command
from recsys.settings import REQUIRED, Sections, require_threads, section_from_dict, setting

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
        """Refuses threads that are none."""
        require_threads(self, "num_threads")


SECTIONS: Sections = {TrainAutoSettings: "train_auto", AutoConfig: "auto"}


def train(settings: TrainAutoSettings, budget: str) -> None:
    """Trains, chooses and tests.

    Args:
        settings: of this program.
        budget: about the longest that the network may take, with its unit.

    Raises:
        UserError: the dataset is refused, or the folder holds another run.
    """
    of_clicks = Manifest.load(settings.dataset).kind in LOG_KINDS
    from recsys_recipes import clicks, ratings  # with torch

    network = settings.output / TRAINED
    threads = {} if settings.num_threads is None else {"num_threads": settings.num_threads}
    of_network: dict[str, Any] = {
        **threads,
        "base_device": settings.base_device,
        "budget": budget,
        "resume": True,
        "baselines": "",
    }
    print_line(f"1. The network, in {network}")
    if of_clicks:
        clicks.train(settings.dataset, network, **of_network)
    else:
        ratings.train(settings.dataset, network, **of_network)
    print_line(f"2. With a simple model, in {settings.output}")
    if of_clicks:
        clicks.train(settings.dataset, settings.output, "blend_clicks", **threads, blend_of=network)
    else:
        ratings.train(settings.dataset, settings.output, "blend", **threads, blend_of=network)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""

    def run(flag_values: flags.FlagValues) -> None:
        values, _ = values_from_flags(flag_values, SECTIONS)
        settings = section_from_dict(TrainAutoSettings, values)
        section_from_dict(AutoConfig, values)
        train(settings, str(flag_values["budget"].value))

    return run_command(run, new_flags(SECTIONS), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
