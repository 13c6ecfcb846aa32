# SPDX-License-Identifier: Apache-2.0
"""Deploys a checkpoint of DLRM or BERT4Rec to a model repository of Triton.

python triton/deployer.py --checkpoint /checkpoints/dlrm --repository /models

The model and its settings are read from the checkpoint. docs/deployment.md describes every flag.
"""

import sys
from pathlib import Path
from typing import Any

from absl import flags

import recsys.serve  # noqa: F401  (its import keeps this folder from posing as the compiler)
from bert4rec.model.weights import is_bert4rec_checkpoint
from bert4rec.serve.export import Bert4RecExport
from dlrm.config import DataConfig
from dlrm.serve.export import DlrmExport
from dlrm.serve.score import score_served_split
from recsys import program
from recsys.serve.checkpoint_export import CheckpointExport
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from recsys.serve.deployment import ArtifactFormat
from recsys.serve.nvidia_options import translate
from recsys.serve.served import ServedModel

_MOST_ROWS = {"dlrm": 4096, "bert4rec": 256}
"""Rows after which larger executions only take longer."""
_SCORED_ROWS = 16384
"""Rows of --dataset that are scored at a time."""


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines every flag of the deployer."""
    common: dict[str, Any] = {"flag_values": flag_values}
    text, number, yes = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_bool
    choice = flags.DEFINE_enum
    text("checkpoint", None, "Folder of a checkpoint, or of a run", **common)
    text("repository", None, "Folder of the model repository; made if it is missing", **common)
    text("name", None, "Name of the model; by default dlrm or bert4rec", **common)
    number("version", None, "Its version; by default the one after the latest", **common)
    choice(
        *("backend", "python", ["python", "pytorch", "onnx"]),
        "What runs the model: the Python backend, which needs this project in the server's "
        "environment and checks each request, or the container's PyTorch or ONNX Runtime backend",
        **common,
    )
    choice(
        *("format", None, ["eager", "torchscript", "aoti", "onnx"]),
        "How the network is stored; by default eager, torchscript or onnx, after the backend",
        **common,
    )
    choice(
        *("target", "bundled", ["bundled", "container"]),
        "The server: that of the package nvidia-pytriton, which has the Python backend alone, or "
        "NVIDIA's container",
        **common,
    )
    choice("device", "cpu", ["cpu", "gpu"], "Where the instances run", **common)
    number(
        "max_batch_size",
        None,
        "Most rows of an execution; by default 4096, of BERT4Rec 256",
        **common,
    )
    yes("dynamic_batching", True, "Let the server put requests together", **common)
    number("max_queue_delay_us", 0, "Microseconds a request may wait for others", **common)
    flags.DEFINE_list("preferred_batch_sizes", [], "Rows the server tries to reach", **common)
    number("instances", 1, "Copies of the model that work at a time; tables are shared", **common)
    number("threads", None, "CPU threads of an instance; by default left to the server", **common)
    number("warmup", 0, "Rows to run before the model is called ready", **common)
    yes("cache", False, "Keep responses, where the server has a cache", **common)
    choice("quantize", "none", ["none", "int8"], "Store the tables of DLRM in 8 bits", **common)
    yes("fp16", False, "Multiply in float16; needs --device gpu", **common)
    choice(
        *("out_of_range", "error", ["error", "zero"]),
        "What an id outside its table gets: an error, or the answer for 0, the unknown value",
        **common,
    )
    number("top_k", 10, "Items that BERT4Rec gives for each history", **common)
    text("raw_ids", None, "Dataset folder: BERT4Rec takes and gives its raw item ids", **common)
    number("verify", 1024, "Rows that are compared with the checkpoint", **common)
    flags.DEFINE_float("tolerance", None, "Largest difference of that comparison", **common)
    text("dataset", None, "Dataset folder: its split is scored before a DLRM is deployed", **common)
    choice("dataset_type", "split", ["split", "binary", "parquet"], "Its type", **common)
    choice("split", "validation", ["validation", "test"], "Split of --dataset", **common)


def run(flag_values: flags.FlagValues) -> None:
    """Does what the flags say."""
    for name in ("checkpoint", "repository"):
        if flag_values[name].value is None:
            raise ValueError(f"--{name} is needed")
    path = Path(flag_values.checkpoint)
    export: CheckpointExport
    if is_bert4rec_checkpoint(path):
        raw_ids = flag_values.raw_ids
        export = Bert4RecExport(path, flag_values.top_k, None if raw_ids is None else Path(raw_ids))
    elif flag_values.raw_ids is not None:
        raise ValueError("--raw_ids: only BERT4Rec has items; DLRM takes ids as the dataset does")
    else:
        export = DlrmExport(path)
    settings = _settings(flag_values, export.kind)
    dataset = flag_values.dataset

    def measure(served: ServedModel) -> None:
        if not isinstance(export, DlrmExport) or dataset is None:
            return
        split, kind = flag_values.split, flag_values.dataset_type
        scored = score_served_split(
            DataConfig(dataset=dataset, dataset_type=kind, eval_split=split),
            served.deployment.signature,
            lambda requests: map(served.answer, requests),
            _SCORED_ROWS,
            export.model,
            check_ids=not export.model.embeddings.hash_indices,
        )
        assert scored.offline is not None
        was, now = scored.offline.auc, scored.served.auc
        program.say(
            f"AUC on the {split} split: {now:.6f}, of the checkpoint {was:.6f}, "
            f"difference {now - was:+.6f}"
        )

    if dataset is not None and not isinstance(export, DlrmExport):
        raise ValueError("--dataset: only DLRM is scored when it is deployed")
    found = deploy(export, settings, measure)
    program.say(f"Checked: {found.parity}")
    if settings.quantize != "none" and dataset is None:
        program.say("What 8 bits cost in AUC is printed with --dataset, a folder of prepared rows")
    program.say(f"Deployed {export.path} as {found.folder}")


def _settings(flag_values: flags.FlagValues, kind: str) -> DeploySettings:
    backend = flag_values.backend
    if flag_values.target == "bundled" and backend != "python":
        raise ValueError(
            f"--backend {backend}: the bundled server has the Python backend alone; add --target "
            "container, or keep --backend python and choose --format"
        )
    default_format: dict[str, ArtifactFormat] = {
        "python": "eager",
        "pytorch": "torchscript",
        "onnx": "onnx",
    }
    chosen_format: ArtifactFormat = flag_values.format or default_format[backend]
    largest = flag_values.max_batch_size
    if largest is None:  # the PyTorch backend does not batch packages of AOTInductor
        largest = 0 if (backend, chosen_format) == ("pytorch", "aoti") else _MOST_ROWS[kind]
    try:
        sizes = tuple(int(size) for size in flag_values.preferred_batch_sizes)
    except ValueError as error:
        raise ValueError(f"--preferred_batch_sizes must be integers: {error}") from error
    return DeploySettings(
        repository=Path(flag_values.repository),
        name=flag_values.name,
        version=flag_values.version,
        serving=ServingSettings(
            backend=backend,
            format=chosen_format,
            device=flag_values.device,
            max_batch_size=largest,
            dynamic_batching=flag_values.dynamic_batching,
            max_queue_delay_us=flag_values.max_queue_delay_us,
            preferred_batch_sizes=sizes,
            instances=flag_values.instances,
            threads=flag_values.threads,
            warmup=flag_values.warmup,
            cache=flag_values.cache,
        ),
        out_of_range=flag_values.out_of_range,
        quantize=flag_values.quantize,
        precision="float16" if flag_values.fp16 else "float32",
        verify=flag_values.verify,
        tolerance=flag_values.tolerance,
    )


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    try:
        sys.argv[1:] = translate(sys.argv[1:])
    except ValueError as error:
        sys.exit(program.fail(str(error)))
    program.start(run)
