# SPDX-License-Identifier: Apache-2.0
"""Fits, tests and queries models that need no training by steps.

    python -m recsys_recipes.fitted item_knn --dataset_path data/ml-1m --export_root data/knn

The first word names the model. A run fits it on the CPU and compares it with the other baselines.
`--mode recommend` answers histories, and `recsys-recipes deploy` takes the checkpoint.
"""

import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from recsys import flags as settings_flags
from recsys import program
from recsys.errors import UserError
from recsys.models.baselines import BASELINES
from recsys.ratings.fitted.config import FittedConfig, config_class
from recsys_recipes.blending.kind import KINDS, kind_of


def define_flags(flag_values: flags.FlagValues, name: str) -> None:
    """Defines the flags of a model."""
    sections = config_class(kind_of(name).settings_class).sections
    settings_flags.define_flags(flag_values, sections, omit=("split",))


def config_from_flags(flag_values: flags.FlagValues, name: str) -> FittedConfig:
    """Builds the config from parsed flags.

    Raises:
        UserError: a value is refused, or does nothing.
    """
    config = config_class(kind_of(name).settings_class)
    values, explicit = settings_flags.values_from_flags(flag_values, config.sections)
    settings_flags.refuse_unused(flag_values, values, config.sections)
    return config.from_dict(values, frozenset(explicit))


def run(flag_values: flags.FlagValues, name: str) -> None:
    """Runs the `mode` of the flags."""
    config = config_from_flags(flag_values, name)
    config.require_inputs()
    execute(kind_of(name), config)


def execute(kind: Any, config: FittedConfig) -> None:
    """Runs the mode of a config."""
    from recsys.ratings.fitted.run import FittedRecipe
    from recsys.ratings.recommend import recommend_named

    print_line, mode = program.print_with_flags, config.run.mode
    if mode == "recommend":
        recommend_named(
            lambda: FittedRecipe.open(kind, config, print_line).recommender(),
            config.lists,
            config.run.test_batch_size,
            program.print_line,
        )
        return
    recipe = FittedRecipe.open(kind, config, print_line)
    (recipe.train if mode == "train" else recipe.test)(BASELINES)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    values, (name, *arguments) = program.new_flags(), argv[1:] or [""]
    if name in KINDS:
        define_flags(values, name)
    else:
        arguments = list(argv[1:])

    def run_named(flag_values: flags.FlagValues) -> None:
        if name not in KINDS:
            raise UserError(f"name the model first: {', '.join(KINDS)}")
        run(flag_values, name)

    return program.run_command(run_named, values, [argv[0], *arguments], __doc__)


if __name__ == "__main__":
    program.show_log()  # progress of long fits
    sys.exit(main(sys.argv))
