# SPDX-License-Identifier: Apache-2.0
"""Trains, tests or measures BERT4Rec, or recommends with it.

python -m bert4rec.scripts.main --config fast --dataset_name ml-1m --dataset_path data/ml-1m
"""

from absl import flags

import bert4rec  # noqa: F401  (its import keeps triton/ from posing as the compiler, before torch)
from bert4rec.scripts.flags import config_from_flags, define_flags
from bert4rec.train import run as runs
from training.scripts import program


def run(flag_values: flags.FlagValues) -> None:
    """Does what the flags say."""
    config = config_from_flags(flag_values)
    if config.run.mode == "test":
        runs.test(config, program.say)
    else:
        program.say_how_to_continue(
            runs.train(config, program.say), config.checkpoint_folder, "bert4rec.scripts.main"
        )


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    program.start(run)
