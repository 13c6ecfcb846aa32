# SPDX-License-Identifier: Apache-2.0
"""Trains, tests or benchmarks a DLRM, or predicts with it.

python -m dlrm.scripts.main --mode train --dataset /data/dlrm/binary_dataset
"""

import contextlib
from typing import Any

from absl import flags

from dlrm.scripts.flags import config_from_flags, define_flags
from recsys import program


def run(flag_values: flags.FlagValues) -> None:
    """Runs the mode that `--mode` names."""
    config = config_from_flags(flag_values)
    config.require_inputs()
    # With torch, which takes seconds: a typo is refused before.
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
    result = execute(config.run.mode, DlrmRecipe.open, config, program.print_with_flags, joined)
    if result is not None:
        program.print_how_to_continue(
            result.reason,
            result.state.step,
            config.checkpoint_folder,
            "dlrm.scripts.main",
            resumable=config.run.checkpoint_format == "native",
        )


def start(**defaults: Any) -> None:
    """Parses the command line and runs the program.

    Args:
        **defaults: setting=default, where the program's default differs from the config's.
    """
    values = program.new_flags()
    define_flags(values, **defaults)
    program.start(run, values)


if __name__ == "__main__":
    start()
