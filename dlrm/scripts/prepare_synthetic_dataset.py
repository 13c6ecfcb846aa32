# SPDX-License-Identifier: Apache-2.0
"""Writes a split-binary dataset of random data, to measure speed.

python -m dlrm.scripts.prepare_synthetic_dataset --synthetic_dataset_dir /data/synthetic
"""

from pathlib import Path

from absl import flags

from dlrm.scripts.flags import config_from_flags, define_flags
from recsys import program
from recsys.data.feature_spec import FeatureSpec


def run(flag_values: flags.FlagValues) -> None:
    """Writes the dataset of the --synthetic_* flags; never into an existing folder."""
    config = config_from_flags(flag_values)
    from dlrm.data.synthetic import write_synthetic_dataset  # with torch

    root = Path(config.data.synthetic_dataset_dir)
    spec = FeatureSpec.criteo(
        config.data.synthetic_dataset_table_sizes, config.model.num_numerical_features
    )
    rows = config.data.synthetic_dataset_num_entries
    write_synthetic_dataset(root, spec, rows, config.data.synthetic_distribution, config.run.seed)
    program.print_line(f"Wrote {rows} rows to {root}")


if __name__ == "__main__":
    _values = program.new_flags()
    define_flags(_values, dataset_type="synthetic_disk")
    program.start(run, _values)
