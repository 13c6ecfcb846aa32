# SPDX-License-Identifier: Apache-2.0
"""Deploys a checkpoint of DLRM or BERT4Rec to a model repository of Triton.

python triton/deployer.py --checkpoint /checkpoints/dlrm --repository /models

The model and its settings are read from the checkpoint. docs/deployment.md describes every flag.
"""

from pathlib import Path

from absl import flags

import serving  # noqa: F401  (its import keeps this folder from posing as the compiler)
from dlrm.export.from_checkpoint import DlrmExport
from serving.checkpoint_export import CheckpointExport
from serving.deploy import DeploySettings, deploy
from serving.model_config import ServingSettings
from training.scripts import program


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines every flag of the deployer."""
    common = {"flag_values": flag_values}
    flags.DEFINE_string("checkpoint", None, "Folder of a checkpoint, or of a run", **common)
    flags.DEFINE_string("repository", None, "Folder of the model repository", **common)
    flags.DEFINE_string("name", None, "Name of the model; by default dlrm or bert4rec", **common)
    flags.DEFINE_integer(
        "version", None, "Number of the version; by default one after the latest", **common
    )


def run(flag_values: flags.FlagValues) -> None:
    """Does what the flags say."""
    export: CheckpointExport = DlrmExport(Path(flag_values.checkpoint))
    found = deploy(
        export,
        DeploySettings(
            repository=Path(flag_values.repository),
            name=flag_values.name,
            version=flag_values.version,
            serving=ServingSettings(),
        ),
    )
    program.say(f"{found.parity}")
    program.say(f"Deployed {found.folder}")


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    program.start(run)
