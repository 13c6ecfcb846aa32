# SPDX-License-Identifier: Apache-2.0
"""Trains, tests or measures BERT4Rec, or recommends with it.

python -m bert4rec.scripts.main --config fast --dataset_name ml-1m --dataset_path data/ml-1m
"""

import os
from typing import TYPE_CHECKING, Any

from absl import flags

from bert4rec.auto.choice import Choice
from bert4rec.config import Bert4RecConfig
from bert4rec.scripts.flags import (
    chosen_from_flags,
    config_from_flags,
    define_flags,
    describe,
    refuse_unused,
)
from recsys import program
from recsys.auto import budget_from_flags

if TYPE_CHECKING:
    from recsys.ratings.recommend import Recommending


def run(flag_values: flags.FlagValues) -> None:
    """Runs the `mode` of the flags."""
    chosen, config, given = chosen_from_flags(flag_values)
    refuse_unused(flag_values, config)
    config.require_inputs()
    if chosen is not None:
        config = _auto(chosen, config, given, budget_from_flags(flag_values, "config"))
    if config.run.mode == "recommend":
        from recsys.ratings.recommend import recommend_named

        recommend_named(_recommending(config), program.print_line)
        return
    # Imported late: torch takes seconds, and a typo is refused before.
    from bert4rec.auto.length import what_was_tried
    from bert4rec.daily import train_days
    from bert4rec.recipe import Bert4RecRecipe, join_run
    from recsys.train.run import Run, execute

    joined = join_run(config)
    if config.run.grow:
        result = train_days(config, program.print_with_flags, joined)
    else:
        result = execute(
            *(config.run.mode, Bert4RecRecipe.open, config, program.print_with_flags, joined),
            then=Run.benchmark if config.run.use_torch_jit_trace else None,
        )
    if result is not None:
        if chosen is not None and not result.reason.startswith("SIG"):
            program.print_with_flags(f"Auto: tried {what_was_tried(chosen, result)}")
        program.print_how_to_continue(
            result.reason,
            result.state.step,
            config.checkpoint_folder,
            "bert4rec.scripts.main",
            folder="export_root",
        )


def recommending(flag_values: flags.FlagValues) -> "Recommending":
    """Prepares to recommend, by parsed flags."""
    return _recommending(config_from_flags(flag_values))


def _recommending(config: Bert4RecConfig) -> "Recommending":
    from bert4rec.train.recommend import open_recommender
    from recsys.ratings.recommend import Recommending

    return Recommending(lambda: open_recommender(config), config.lists, config.data.test_batch_size)


def _auto(
    chosen: Choice, config: Bert4RecConfig, given: frozenset[str], budget: int
) -> Bert4RecConfig:
    """Prints what `--config auto` chose; returns the config, with a length that fits the budget."""
    from bert4rec.auto.length import within  # with torch

    is_first = os.environ.get("RANK", "0") == "0"
    print_line = program.print_with_flags if is_first else lambda _line: None
    for line in (chosen.why, *chosen.reasons):
        print_line(f"Auto: {line}")
    if chosen.steps:
        config, line = within(config, chosen, given, budget)
        print_line(f"Auto: {line}")
    print_line("Auto: to train without this choice:")
    told = (config.explicit | {"max_steps"}) - {"mode", "resume"}
    values, sections = config.to_dict(), config.sections
    print_line(program.command_of("bert4rec.scripts.main", values, sections, told))
    return config


def start(**defaults: Any) -> None:
    """Runs the program with the command line of the process.

    Args:
        **defaults: defaults of flags that replace those of the config, by setting.
    """
    values = program.new_flags()
    define_flags(values, **defaults)
    program.start(run, values, describe)


if __name__ == "__main__":
    start()
