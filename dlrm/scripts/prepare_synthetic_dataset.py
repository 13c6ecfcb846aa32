# SPDX-License-Identifier: Apache-2.0
"""Writes a split-binary dataset of random data, to measure speed.

python -m dlrm.scripts.prepare_synthetic_dataset --synthetic_dataset_dir /data/synthetic
"""

from pathlib import Path

from absl import flags

from dlrm.scripts.flags import config_from_flags, define_flags
from recsys import program


def run(flag_values: flags.FlagValues) -> None:
    """Writes the dataset that the --synthetic_* flags describe; never into an existing folder."""
    config = config_from_flags(flag_values)
    from dlrm.data.synthetic import write_dataset_of  # imports torch

    write_dataset_of(config)
    rows, folder = config.data.synthetic_dataset_num_entries, config.data.synthetic_dataset_dir
    program.print_line(f"Wrote {rows} rows to {Path(folder)}")


if __name__ == "__main__":
    _values = program.new_flags()
    define_flags(_values, dataset_type="synthetic_disk")
    program.start(run, _values)
