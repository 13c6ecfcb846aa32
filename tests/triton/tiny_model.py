# SPDX-License-Identifier: Apache-2.0
"""A repository of one model of a few lines: what the server does with it is none of our model's."""

from pathlib import Path

from recsys.serve.versions.repository import ModelRepository

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
instance_group [ { count: %d kind: KIND_CPU } ]
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
    repository: Path,
    name: str,
    version: int,
    factor: float | str,
    initialize: str = "pass",
    *,
    instances: int = 1,
) -> None:
    """Adds a version that multiplies by a factor."""
    with ModelRepository(repository).staged_version(name, version) as staged:
        (staged.folder / "model.py").write_text(MODEL % (initialize, factor))
        staged.install(CONFIG % instances, {})


def wait_while(held: Path) -> str:
    """Returns code for `initialize` that does not end while a file is there."""
    exists = f"lambda: os.path.exists({str(held)!r})"
    return f"import os, time; [time.sleep(0.05) for _ in iter({exists}, False)]"
