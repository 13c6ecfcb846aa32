# SPDX-License-Identifier: Apache-2.0
"""Deployed checkpoints and requests for them, without a server."""

import numpy as np

from dlrm.serve.export import DlrmExport
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from tests.recsys.serve.checkpoints import NUM_NUMERICAL, TABLE_SIZES


def deploy_checkpoint(checkpoint, repository, *, serving=None, **settings):
    """Deploys a checkpoint, which compares the two; returns what deploying tells."""
    serving = serving or ServingSettings()
    given = DeploySettings(repository=repository, serving=serving, **settings)
    return deploy(DlrmExport(checkpoint), given)


def draw(rows, seed=0, table_sizes=TABLE_SIZES):
    """Draws a request."""
    generator = np.random.default_rng(seed)
    return {
        "numerical": generator.normal(size=(rows, NUM_NUMERICAL)).astype(np.float32),
        "categorical": generator.integers(0, table_sizes, (rows, len(table_sizes)), np.int64),
    }
