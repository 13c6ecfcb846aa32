# SPDX-License-Identifier: Apache-2.0
"""Trains, tests, benchmarks or predicts with a DLRM.

python -m dlrm.scripts.main --mode train --dataset /data/dlrm/binary_dataset
"""

import contextlib
import functools
import os
from typing import Any

from absl import flags

from dlrm.config import DlrmConfig
from dlrm.nn.fixed_products import fix_products
from dlrm.scripts import flags as dlrm_flags
from dlrm.scripts.flags import config_from_flags, define_flags, describe
from recsys import program
from recsys.auto import AUTO, budget_from_flags


def run(flag_values: flags.FlagValues, *, has_own_defaults: bool = False) -> None:
    """Runs the task of `--mode`.

    Args:
        flag_values: parsed flags.
        has_own_defaults: whether the program has its own defaults, which replace `--preset auto`.
    """
    if not has_own_defaults:
        dlrm_flags.take_default_preset(flag_values)
    config = config_from_flags(flag_values)
    dlrm_flags.refuse_unused(flag_values, config)
    if config.run.deterministic:
        fix_products()  # before anything imports torch, as the race of `--preset auto` does
    if flag_values["preset"].value == AUTO:
        config = _auto(flag_values)
    config.require_inputs()
    # These import torch, which takes seconds; a typo has been refused before.
    from dlrm.recipe import DlrmRecipe, join_run
    from recsys.train.run import Run, execute

    joined = join_run(config)
    if config.run.mode == "predict":
        with joined as processes:
            opened = Run.start(DlrmRecipe.open, config, program.print_with_flags, processes)
            assert isinstance(opened.recipe, DlrmRecipe)
            with contextlib.closing(opened.log) as log:
                log.begin(opened.recipe.config.to_dict())
                log.record((), opened.recipe.predict())
        return
    if config.run.grow:
        from dlrm.daily import train_days

        result = train_days(config, program.print_with_flags, joined)
    else:
        result = execute(config.run.mode, DlrmRecipe.open, config, program.print_with_flags, joined)
    if result is not None:
        program.print_how_to_continue(
            result.reason,
            result.state.step,
            config.checkpoint_folder,
            "dlrm.scripts.main",
        )


def _auto(flag_values: flags.FlagValues) -> DlrmConfig:
    """Returns the config that `--preset auto` chooses, after a race if there are several."""
    budget = budget_from_flags(flag_values, "preset")
    chosen, contenders, given = dlrm_flags.contenders_from_flags(flag_values)
    is_first = os.environ.get("RANK", "0") == "0"
    print_line = program.print_with_flags if is_first else lambda _line: None
    print_line(f"Auto: {chosen.why}")
    name, config = contenders[0].name, contenders[0].config
    if chosen.is_made:
        return config
    if len(contenders) > 1 or contenders[0].refined is not None:
        from dlrm.auto.race import race  # imports torch

        name, config = race(contenders, given, budget, print_line)
    networks = f", {config.model.seeds} networks" if config.model.seeds > 1 else ""
    print_line(f"Auto: takes the settings for {name}{networks}. To train without this choice:")
    print_line(dlrm_flags.command_of(config, given))
    return config


def start(**defaults: Any) -> None:
    """Parses the command line and runs the program.

    Args:
        **defaults: setting=default, for each default that differs from the config's.
    """
    values = program.new_flags()
    define_flags(values, **defaults)
    program.start(functools.partial(run, has_own_defaults=bool(defaults)), values, describe)


if __name__ == "__main__":
    start()
