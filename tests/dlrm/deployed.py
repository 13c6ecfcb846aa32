# SPDX-License-Identifier: Apache-2.0
"""Deployed checkpoints and requests for them, without a server."""

import numpy as np

from dlrm.serve.export import DlrmExport
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import NUM_NUMERICAL as NUM_RAW_NUMERICAL
from recsys.data.manifest import Manifest
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from tests.preproc.clicks.rows import good_text, run
from tests.recsys.serve.checkpoints import NUM_NUMERICAL, TABLE_SIZES, dlrm_checkpoint


def deploy_checkpoint(checkpoint, repository, *, serving=None, **settings):
    """Deploys a checkpoint, which compares the two; returns what deploying tells."""
    serving = serving or ServingSettings()
    given = DeploySettings(repository=repository, serving=serving, **settings)
    return deploy(DlrmExport(checkpoint), given)


def raw_checkpoint(folder):
    """Writes a small dataset and a DLRM for it; returns the flags that deploy it with raw rows."""
    (folder / "log").write_bytes(good_text(300, seed=5, vocabulary=60))
    rules = ClicksSemantics(frequency_limit=2, split_fractions=(0.8, 0.1, 0.1))
    run(folder / "log", folder / "dataset", semantics=rules)
    sizes = Manifest.load(folder / "dataset").cardinalities
    dataset = {"dataset": str(folder / "dataset"), "dataset_type": "split"}
    checkpoint, _ = dlrm_checkpoint(
        folder / "checkpoint", sizes, num_numerical_features=NUM_RAW_NUMERICAL, **dataset
    )
    return (f"--checkpoint={checkpoint}", "--raw", f"--dataset={folder / 'dataset'}")


def draw(rows, seed=0, table_sizes=TABLE_SIZES, num_numerical=NUM_NUMERICAL):
    """Draws a request."""
    generator = np.random.default_rng(seed)
    numerical = generator.normal(size=(rows, num_numerical)).astype(np.float32)
    categorical = generator.integers(0, table_sizes, (rows, len(table_sizes)), np.int64)
    return ({"numerical": numerical} if num_numerical else {}) | {"categorical": categorical}


def with_value(request, name, row, feature, value):
    """Changes one value of a request."""
    request[name][row, feature] = value
    return request
