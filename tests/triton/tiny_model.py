# SPDX-License-Identifier: Apache-2.0
"""A repository of one model of a few lines: what the server does with it is none of our model's."""

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        %s

    def execute(self, requests):
        xs = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", x * %s)]) for x in xs]
"""


def write_version(
    repository: Path, name: str, version: int, factor: float, initialize: str = "pass"
) -> None:
    """Writes a version that multiplies by a factor, aside and renamed as the deployer does."""
    model = repository / name
    aside = model / f"{version}.tmp"
    aside.mkdir(parents=True)
    (aside / "model.py").write_text(MODEL % (initialize, factor))
    (model / "config.pbtxt").write_text(CONFIG)
    aside.rename(model / str(version))
