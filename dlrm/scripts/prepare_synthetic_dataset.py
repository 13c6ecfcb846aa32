# SPDX-License-Identifier: Apache-2.0
"""Writes a split-binary dataset of noise, to measure speed without real data.

python -m dlrm.scripts.prepare_synthetic_dataset --synthetic_dataset_dir /data/synthetic
"""

import sys
from pathlib import Path

from absl import app, flags

import dlrm  # noqa: F401  (its import keeps triton/ from posing as the compiler, before torch)
from dataspec.feature_spec import FeatureSpec
from dlrm.data.synthetic import write_synthetic_dataset
from dlrm.scripts.flags import config_from_flags, define_flags


def run(argv: list[str]) -> None:
    """Writes what the synthetic_* flags say; exits 2 where the folder is there already."""
    del argv
    try:
        config = config_from_flags(flags.FLAGS)
        root = Path(config.data.synthetic_dataset_dir)
        spec = FeatureSpec.criteo(
            config.data.synthetic_dataset_table_sizes, config.model.num_numerical_features
        )
        write_synthetic_dataset(
            root,
            spec,
            config.data.synthetic_dataset_num_entries,
            config.data.synthetic_distribution,
            config.run.seed,
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"Wrote {config.data.synthetic_dataset_num_entries} rows to {root}")


if __name__ == "__main__":
    define_flags(flags.FLAGS, dataset_type="synthetic_disk")
    app.run(run)
