# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING's recipes: each adds a toy in a copy of the repository, and the programs run it.

The tests that a recipe names are not run. Kernels are not compiled anew, so the copy has none of
`cuda_ext`, and plain PyTorch runs.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

import preproc.clicks.kernel as native_kernel
from preproc.clicks.job import ClicksJob
from preproc.clicks.pipeline import prepare
from preproc.clicks.rules import ClicksSemantics
from recsys.data.feature_spec import SPEC_FILE
from recsys.data.manifest import Manifest
from tests import harness

EDITS = {
    "Add a flag": [
        (
            "dlrm/config/model.py",
            "@    dcn_low_rank_dim: int = setting(",
            '    top_bias: float = setting(0.0, "Bias that the top MLP starts with")\n',
        ),
        (
            "dlrm/model/network.py",
            "@        if config.optimized_mlp and",
            "        nn.init.constant_(self.top_mlp.linears[-1].bias, config.top_bias)\n",
        ),
    ],
    "Add a preset": [
        (
            "dlrm/presets/toy.yaml",
            "",
            "# A toy.\nembedding_dim: 4\nbottom_mlp_sizes: [8, 4]\ntop_mlp_sizes: [8, 1]\n"
            "batch_size: 64\nlr: 0.001\nwarmup_steps: 0\ndecay_steps: 0\ntop_bias: 3.0\n",
        ),
        (
            "preproc/clicks/presets/toy.yaml",
            "",
            "# Every category that occurs twice.\nfrequency_limit: 2\n",
        ),
    ],
    "Add an interaction": [
        (
            "dlrm/nn/interaction.py",
            "@def build_interaction(\n",
            '''class ToyInteraction(Interaction):
    """The sum of all vectors."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.out_features = embedding_dim

    def forward(self, bottom: Tensor, vectors: Tensor | None) -> Tensor:
        """Gives [B, D]."""
        return bottom if vectors is None else bottom + vectors.sum(1)


''',
        ),
        (
            "dlrm/nn/interaction.py",
            '@    if interaction_op == "cat":\n',
            '    if interaction_op == "toy_sum":\n        return ToyInteraction(embedding_dim)\n',
        ),
        ("dlrm/config/model.py", 'InteractionOp = Literal[@"cuda_dot",', '"toy_sum", '),
    ],
    "Add an optimizer": [
        ("cuda_ext/__init__.py", 'RowOptimizer = Literal[@"sgd",', '"toy_sign", '),
        (
            "cuda_ext/row_rules.py",
            '@        "sgd": RowRule(_sgd),\n',
            """        "toy_sign": RowRule(
            lambda old, gradient, state, step: (old - step.lr * gradient.sign(), state)
        ),
""",
        ),
        (
            "recsys/train/optimizers/dense.py",
            "_DENSE_RULES: Mapping[RowOptimizer, DenseRule] = {\n@",
            '    "toy_sign": "sgd",\n',
        ),
    ],
    "Add a dataset type": [
        (
            "recsys/data/toy.py",
            "",
            '''"""A split binary dataset in a folder of its own."""

from pathlib import Path

from recsys.data.split_binary import SplitBinaryReader


class ToyReader:
    """Has what a reader must have, and nothing else."""

    def __init__(self, root: Path, split: str) -> None:
        rows = SplitBinaryReader(root / "toy", split)
        self.spec, self.num_rows, self.files = rows.spec, rows.num_rows, rows.files
        self.read = rows.read
''',
        ),
        ("dlrm/config/data.py", '    @"binary", "memmap",', '"toy", '),
        (
            "dlrm/data/opened.py",
            '@        if self.config.dataset_type == "binary":\n',
            """        if self.config.dataset_type == "toy":
            from recsys.data.toy import ToyReader

            return ToyReader(self.root, split)
""",
        ),
        (
            "recsys/data/verify/splits.py",
            "@    ]\n    readers = []",
            '        ((root / "toy").is_dir(), _open_toy),\n',
        ),
        (
            "recsys/data/verify/splits.py",
            "@def _open_readers(",
            """def _open_toy(root: Path, split: str, spec: FeatureSpec) -> RowReader:
    reader = SplitBinaryReader(root / "toy", split, spec, check_ids=True)
    reader.format_name = "toy"
    return reader


""",
        ),
    ],
    "Add an engine": [
        (
            "preproc/clicks/engines/toy.py",
            "",
            '''"""The reference engine by another name."""

import dataclasses

from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.engines import reference


def run(engine_job: EngineJob) -> EngineResult:
    """Makes the dataset."""
    return dataclasses.replace(reference.run(engine_job), engine={"name": "toy"})
''',
        ),
        (
            "preproc/clicks/engines/__init__.py",
            "ENGINES = {\n@",
            '    "toy": "preproc.clicks.engines.toy",\n',
        ),
    ],
    "Add a format": [
        (
            "recsys/serve/manifest.py",
            'ArtifactFormat = Literal[@"eager",',
            '"exported", ',
        ),
        (
            "recsys/serve/manifest.py",
            "ARTIFACT_FILES: dict[ArtifactFormat, str] = {\n@",
            '    "exported": "model.exported.pt2",\n',
        ),
        (
            "recsys/serve/formats.py",
            '@    _optional("onnx", "onnxscript")\n',
            """    if artifact_format == "exported":
        dynamic = tuple({0: torch.export.Dim("batch", min=1)} for _ in examples)
        program = torch.export.export(network, examples, dynamic_shapes=dynamic)
        torch.export.save(program, path)
        return
""",
        ),
        (
            "recsys/serve/formats.py",
            '@    if deployment.format == "torchscript":\n',
            """    if deployment.format == "exported":
        program = torch.export.load(path).module()
        return lambda inputs: program(*inputs)
""",
        ),
        ("recsys/serve/config_pbtxt.py", '"python": ("eager",@', ' "exported",'),
    ],
    "Add a metric": [
        ("dlrm/train/metrics.py", "    accuracy: float\n@", "    toy_error: float\n"),
        (
            "dlrm/train/metrics.py",
            "@        accuracy=float(",
            "        toy_error=float((torch.sigmoid(logits64) - labels64).square().mean()),\n",
        ),
    ],
}
"""Heading of a recipe -> its steps: file, text of the file with @ where the toy's goes, the toy's.

A new file, in a folder that the recipe names, has no text before.
"""


def recipe(heading):
    """Returns the text of a recipe."""
    text = (harness.REPOSITORY / "CONTRIBUTING.md").read_text()
    (body,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return body


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with every toy added."""
    folder = tmp_path_factory.mktemp("repository")
    for path in harness.repository_files("*.py", "*.yaml", ":!tests"):
        target = folder / path.relative_to(harness.REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    kernel = Path(native_kernel.__file__).parent
    for library in kernel.glob("*.so"):
        (folder / kernel.relative_to(harness.REPOSITORY) / library.name).symlink_to(library)
    for heading, steps in EDITS.items():
        for name, where, toy in steps:
            file, there = folder / name, where.replace("@", "")
            text = file.read_text() if where else ""
            assert file.exists() == bool(where), f"{heading}: {name}"
            assert not where or text.count(there) == 1, f"{heading}: {name}: {there}"
            file.write_text(text.replace(there, where.replace("@", toy)) if where else toy)
    return folder


PROGRAMS = f"""
import runpy, shutil, sys

commands = (
    "preproc.generate_criteo --output=log --rows=3000 --days=3",
    "preproc.clicks --engine=toy --preset=toy --input=log --output=toy",
    "dataspec.verify .",
    "dlrm.scripts.main --mode=train --preset=toy --interaction_op=toy_sum --optimizer=toy_sign "
    "--dataset=. --dataset_type=toy --max_steps=3 --base_device=cpu "
    "--save_checkpoint_path=run --log_path=log.json",
    "recsys_recipes.serving.deploy --format=exported --checkpoint=run --repository=models",
)
for command in commands:
    sys.argv = command.split()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        assert not stop.code, command
    if command.startswith("preproc.clicks"):
        shutil.copyfile("toy/{SPEC_FILE}", "{SPEC_FILE}")
"""
"""Runs, in one process: engine and preset; dataset type; flag, preset, interaction, optimizer and
metric of a training; format."""


@pytest.fixture(scope="module")
def done(copy, tmp_path_factory):
    """The folder in which the programs ran, and what they printed."""
    folder = tmp_path_factory.mktemp("clicks")
    ran = harness.python("-c", PROGRAMS, folder=folder, PYTHONPATH=str(copy))
    return folder, ran.stdout + ran.stderr


@pytest.mark.parametrize("heading", EDITS)
def test_a_recipe_names_its_files(heading):
    text = recipe(heading)
    for name, where, _ in EDITS[heading]:
        named = name if where else str(Path(name).parent)
        assert f"`{named}`" in text or f"`{named}/`" in text, named


def test_a_run_uses_what_was_added_to_training(done):
    records = [record["data"] for record in harness.read_log(done[0] / "log.json")]
    (settings,) = (data for data in records if "top_bias" in data)
    assert settings["top_bias"] == 3.0, "of the preset"
    assert settings["embedding_dim"] == 4
    assert (settings["interaction_op"], settings["optimizer"]) == ("toy_sum", "toy_sign")
    (final,) = (data for data in records if "toy_error" in data)
    assert 0.3 < final["toy_error"] < 0.9  # logits begin at 3, a quarter of the rows are clicks


def test_a_dataset_type_is_verified(done):
    assert re.search(r"^test .* toy$", done[1], re.MULTILINE)


def test_an_engine_and_a_preset_make_the_bytes_of_the_reference(done):
    folder, _ = done
    semantics = ClicksSemantics(frequency_limit=2)
    files = {"input": folder / "log", "output": folder / "reference"}
    prepare(ClicksJob(**files, engine="reference", semantics=semantics))
    toy, expected = (Manifest.load(folder / name) for name in ("toy", "reference"))
    assert toy.fingerprint == expected.fingerprint


def test_a_format_is_deployed_and_checked(done):
    version = done[0] / "models" / "dlrm" / "1"
    assert json.loads((version / "deployment.json").read_text())["format"] == "exported"
    assert (version / "model.exported.pt2").is_file()
