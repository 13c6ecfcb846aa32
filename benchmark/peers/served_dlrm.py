# SPDX-License-Identifier: Apache-2.0
"""The model of the serving benchmark: a default DLRM, random weights."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dlrm.config import DlrmConfig
from dlrm.model.network import Dlrm
from dlrm.model.weights import weights_of
from dlrm.nn.embedding import read_tables
from dlrm.serve.export import DlrmExport
from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
from recsys.serve.client.requests import Arrays
from recsys.serve.config_pbtxt import CONFIG_FILE, ServingSettings, config_text
from recsys.serve.deploy import DeploySettings, deploy
from recsys.serve.manifest import Backend
from recsys.serve.served import ServedModel
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys.serve.signature import CATEGORICAL, NUMERICAL, Signature
from recsys.train.measure.timing import DISTINCT_INPUTS
from recsys.train.saving.write import write_checkpoint

NAME = "dlrm"
"""Name of the model on the server."""
_LARGE_REQUEST = 4096


def write_model(path: Path, table_sizes: Sequence[int]) -> None:
    """Writes a checkpoint of NVIDIA's default model with random weights."""
    config = DlrmConfig.from_dict({"dataset_type": "synthetic_gpu", "optimized_mlp": False})
    torch.manual_seed(0)
    model = Dlrm(config.model, table_sizes)
    write_checkpoint(path, weights_of(model), {"step": 0}, config.to_dict())


@dataclasses.dataclass(frozen=True, slots=True)
class DeployedDlrm:
    """A deployed DLRM, to be served with various settings.

    Attributes:
        signature: of the model.
        table_bytes: of all tables together.
    """

    repository: Path
    signature: Signature
    table_sizes: tuple[int, ...]
    table_bytes: int

    @classmethod
    def make(cls, folder: Path, table_sizes: tuple[int, ...]) -> "DeployedDlrm":
        """Deploys a DLRM with random weights; `folder` holds repository, checkpoint and log."""
        print(f"deploying tables of {sum(table_sizes):,} rows", flush=True)
        write_model(folder / "checkpoint", table_sizes)
        export = DlrmExport(folder / "checkpoint")
        deploy(export, DeploySettings(repository=folder / "models", verify=64))
        width = read_tables(export.model.embeddings)[0].shape[1]
        return cls(
            folder / "models",
            export.signature(fixed_shapes=True),
            table_sizes,
            sum(table_sizes) * width * 4,
        )

    def serve(self, serving: ServingSettings) -> TritonServer:
        """Starts a server with other settings, without deploying again."""
        text = config_text(NAME, self.signature, serving)
        (self.repository / NAME / CONFIG_FILE).write_text(text)
        settings = ServerSettings(repository=self.repository, grpc_port=0)  # gRPC is measured
        server = TritonServer(settings, self.repository.parent / "server.log")
        try:
            server.wait_ready(600)
        except BaseException:
            server.stop()
            raise
        return server

    def here(self, backend: Backend) -> ServedModel:
        """Opens the deployed version in this process, on one thread."""
        torch.set_num_threads(1)
        served_class = NativeDlrm if backend == "native" else ServedDlrm
        return served_class.open(self.repository / NAME / "1", torch.device("cpu"))

    def draw_requests(self, rows: int) -> list[Arrays]:
        """Draws requests of one size, more rows than fit into caches."""
        generator = np.random.default_rng(rows)
        shape = (rows, *self.signature.input(NUMERICAL).shape)
        return [
            {
                NUMERICAL: generator.normal(size=shape).astype(np.float32),
                CATEGORICAL: generator.integers(
                    0, self.table_sizes, (rows, len(self.table_sizes)), np.int64
                ),
            }
            for _ in range(DISTINCT_INPUTS if rows <= 64 else 8)
        ]

    def every_row(self) -> list[Arrays]:
        """Returns requests that read every row of every table."""
        sizes = np.array(self.table_sizes)
        rows = np.arange(sizes.max(), dtype=np.int64)
        width = self.signature.input(NUMERICAL).shape[0]
        return [
            {
                NUMERICAL: np.zeros((len(chunk), width), np.float32),
                CATEGORICAL: np.ascontiguousarray(chunk[:, None] % sizes),
            }
            for chunk in np.array_split(rows, -(-len(rows) // _LARGE_REQUEST))
        ]
