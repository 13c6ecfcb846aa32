# SPDX-License-Identifier: Apache-2.0
"""Fits, tests and queries models that are fitted at once, without training steps.

    python -m recsys_recipes.fitted item_knn --dataset_path data/ml-1m --export_root data/knn
    python -m recsys_recipes.fitted logistic --dataset data/clicks --save_checkpoint_path data/run

The first word names the model. A run fits it and compares it with baselines.
`--mode recommend` answers histories, `--mode predict` rows of clicks, and `recsys-recipes deploy`
takes the checkpoint.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from recsys import flags as settings_flags
from recsys import program
from recsys.errors import UserError
from recsys.models.baselines import BASELINES
from recsys.ratings.fitted.config import FittedConfig
from recsys.train.config import config_class
from recsys_recipes.blending.clicks.kind import BLEND_CLICKS
from recsys_recipes.blending.kind import KINDS, kind_of
from recsys_recipes.logistic.config import OF_STEPS, ClicksConfig
from recsys_recipes.logistic.kind import LOGISTIC

if TYPE_CHECKING:
    from recsys.ratings.recommend import Recommending
    from recsys_recipes.logistic.recipe import ClicksKind


OF_CLICKS: "Mapping[str, ClicksKind]" = {kind.name: kind for kind in (LOGISTIC, BLEND_CLICKS)}
"""Models of clicks that are fitted at once."""
NAMES = (*KINDS, *OF_CLICKS)
"""Names of all models that are fitted at once."""


def config_of(name: str) -> type[FittedConfig] | type[ClicksConfig]:
    """Returns the class of all settings of a run with a model."""
    if name in OF_CLICKS:
        return config_class(ClicksConfig, OF_CLICKS[name])
    return config_class(FittedConfig, kind_of(name))


def define_flags(flag_values: flags.FlagValues, name: str) -> None:
    """Defines the flags of a model."""
    omit = OF_STEPS if name in OF_CLICKS else {"split"}
    settings_flags.define_flags(flag_values, config_of(name).sections, omit=omit)


def config_from_flags(flag_values: flags.FlagValues, name: str) -> Any:
    """Builds the config from parsed flags.

    Raises:
        UserError: a value is refused, or has no effect.
    """
    config = config_of(name)
    values, explicit = settings_flags.values_from_flags(flag_values, config.sections)
    settings_flags.refuse_unused(flag_values, values, config.sections)
    return config.from_dict(values, frozenset(explicit))


def run(flag_values: flags.FlagValues, name: str) -> None:
    """Runs the `mode` of the flags."""
    config = config_from_flags(flag_values, name)
    config.require_inputs()
    if name not in OF_CLICKS:
        execute(kind_of(name), config)
        return
    # Imported late: torch takes seconds, and a typo is refused before.
    from recsys_recipes.logistic.recipe import ClicksRecipe

    recipe = ClicksRecipe.open(OF_CLICKS[name], config, program.print_with_flags)
    {"train": recipe.train, "test": recipe.test, "predict": recipe.predict}[config.run.mode]()


def execute(kind: Any, config: FittedConfig) -> None:
    """Runs the mode of a config."""
    from recsys.ratings.fitted.run import FittedRecipe
    from recsys.ratings.recommend import recommend_named

    if config.run.mode == "recommend":
        recommend_named(_recommending(kind, config), program.print_line)
        return
    recipe = FittedRecipe.open(kind, config, program.print_with_flags)
    (recipe.train if config.run.mode == "train" else recipe.test)(BASELINES)


def recommending(flag_values: flags.FlagValues, name: str) -> "Recommending":
    """Prepares to recommend with a model of ratings, by parsed flags."""
    return _recommending(kind_of(name), config_from_flags(flag_values, name))


def _recommending(kind: Any, config: FittedConfig) -> "Recommending":
    from recsys.ratings.fitted.run import FittedRecipe
    from recsys.ratings.recommend import Recommending

    return Recommending(
        lambda: FittedRecipe.open(kind, config, program.print_with_flags).recommender(),
        config.lists,
        config.run.test_batch_size,
    )


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    values, (name, *arguments) = program.new_flags(), argv[1:] or [""]
    if name in NAMES:
        define_flags(values, name)
    else:
        arguments = list(argv[1:])

    def run_named(flag_values: flags.FlagValues) -> None:
        if name not in NAMES:
            raise UserError(f"name the model first: {', '.join(NAMES)}")
        run(flag_values, name)

    return program.run_command(run_named, values, [argv[0], *arguments], __doc__)


if __name__ == "__main__":
    program.show_log()  # progress of long fits
    sys.exit(main(sys.argv))
