# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING's recipes: each adds a toy in a copy of the repository, and the programs run it.

The tests that a recipe names are not run. Kernels are not compiled anew, so the copy has none of
`cuda_ext`, and plain PyTorch runs.
"""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

import preproc.criteo.kernel as native_kernel
from preproc.criteo.job import CriteoJob
from preproc.criteo.pipeline import prepare
from preproc.criteo.rules import CriteoSemantics
from recsys.data.feature_spec import SPEC_FILE
from recsys.data.manifest import Manifest
from tests import harness


@dataclasses.dataclass(frozen=True)
class Edit:
    """A step of a recipe.

    Attributes:
        recipe: heading in CONTRIBUTING.
        file: that the recipe names, or a new one in a folder that it names.
        before: text of the file; empty makes the file.
        after: what takes its place.
    """

    recipe: str
    file: str
    before: str
    after: str


EDITS = [
    Edit(
        "Add a flag",
        "dlrm/config/model.py",
        "    dcn_low_rank_dim: int = setting(",
        '    top_bias: float = setting(0.0, "Bias that the top MLP starts with")\n'
        "    dcn_low_rank_dim: int = setting(",
    ),
    Edit(
        "Add a flag",
        "dlrm/model/network.py",
        "        if self.interaction.num_padding:\n",
        "        nn.init.constant_(self.top_mlp.linears[-1].bias, config.top_bias)\n"
        "        if self.interaction.num_padding:\n",
    ),
    Edit(
        "Add a preset",
        "dlrm/presets/toy.yaml",
        "",
        "# A toy.\nembedding_dim: 4\nbottom_mlp_sizes: [8, 4]\ntop_mlp_sizes: [8, 1]\n"
        "batch_size: 64\nlr: 0.001\nwarmup_steps: 0\ndecay_steps: 0\ntop_bias: 3.0\n",
    ),
    Edit(
        "Add a preset",
        "preproc/criteo/presets/toy.yaml",
        "",
        "# Every category that occurs twice.\nfrequency_limit: 2\n",
    ),
    Edit(
        "Add an interaction",
        "dlrm/nn/interaction.py",
        "def build_interaction(\n",
        '''class ToyInteraction(Interaction):
    """The sum of all vectors."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.out_features = embedding_dim

    def forward(self, bottom: Tensor, vectors: Tensor | None) -> Tensor:
        """Gives [B, D]."""
        return bottom if vectors is None else bottom + vectors.sum(1)


def build_interaction(
''',
    ),
    Edit(
        "Add an interaction",
        "dlrm/nn/interaction.py",
        '    if interaction_op == "cat":\n',
        '    if interaction_op == "toy_sum":\n        return ToyInteraction(embedding_dim)\n'
        '    if interaction_op == "cat":\n',
    ),
    Edit(
        "Add an interaction",
        "dlrm/config/model.py",
        'InteractionOp = Literal["cuda_dot",',
        'InteractionOp = Literal["toy_sum", "cuda_dot",',
    ),
    Edit(
        "Add an optimizer",
        "cuda_ext/row_rules.py",
        'RowOptimizer = Literal["sgd",',
        'RowOptimizer = Literal["sgd", "toy_sign",',
    ),
    Edit(
        "Add an optimizer",
        "cuda_ext/row_rules.py",
        '        "sgd": RowRule(_sgd),\n',
        '        "sgd": RowRule(_sgd),\n'
        '        "toy_sign": RowRule(\n'
        "            lambda old, gradient, state, step: (old - step.lr * gradient.sign(), state)\n"
        "        ),\n",
    ),
    Edit(
        "Add an optimizer",
        "recsys/train/optimizers/dense.py",
        "_BESIDE: Mapping[RowOptimizer, DenseRule] = {\n",
        '_BESIDE: Mapping[RowOptimizer, DenseRule] = {\n    "toy_sign": "sgd",\n',
    ),
    Edit(
        "Add a dataset type",
        "recsys/data/npz.py",
        "",
        '''"""One compressed NumPy file per split."""

from pathlib import Path

import numpy as np

from recsys.data.click_columns import ClickColumns, RawColumns
from recsys.data.feature_spec import FeatureSpec


def file_of(root: Path, split: str) -> Path:
    """Returns the file of a split."""
    return root / f"{split}.npz"


def write_npz(root: Path, split: str, rows: ClickColumns) -> None:
    """Writes a split."""
    ids = np.stack(rows.categorical, 1)
    np.savez(file_of(root, split), label=rows.label, numerical=rows.numerical, ids=ids)


class NpzReader:
    """Reads the rows of a split."""

    def __init__(self, root: Path, split: str, spec: FeatureSpec) -> None:
        self.spec, self.path = spec, file_of(root, split)
        self.files = [self.path]
        with np.load(self.path) as file:
            self._columns = [file[name] for name in ("label", "numerical", "ids")]
        self.num_rows = len(self._columns[0])

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop)."""
        label, numerical, ids = (column[start:stop] for column in self._columns)
        columns = ClickColumns(label, numerical.astype(np.float32), tuple(ids.T.astype(np.int32)))
        columns.check_ids(self.spec, self.path, start)
        return columns

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop) as the file holds them."""
        label, numerical, ids = (column[start:stop] for column in self._columns)
        return RawColumns(label.view(np.int8), numerical, tuple(ids.T))
''',
    ),
    Edit(
        "Add a dataset type",
        "dlrm/config/data.py",
        '    "binary", "memmap",',
        '    "npz", "binary", "memmap",',
    ),
    Edit(
        "Add a dataset type",
        "dlrm/data/opened.py",
        '        if self.config.dataset_type == "binary":\n',
        '        if self.config.dataset_type == "npz":\n'
        "            from recsys.data.npz import NpzReader\n\n"
        "            return NpzReader(self.root, split, self.spec)\n"
        '        if self.config.dataset_type == "binary":\n',
    ),
    Edit(
        "Add a dataset type",
        "recsys/data/verify/source.py",
        "        (_has_records, _open_records),\n",
        "        (_has_records, _open_records),\n"
        '        (lambda root, split, _: (root / f"{split}.npz").is_file(), _open_npz),\n',
    ),
    Edit(
        "Add a dataset type",
        "recsys/data/verify/source.py",
        "def _open_records(",
        """def _open_npz(root: Path, split: str, spec: FeatureSpec) -> RowSource:
    from recsys.data.npz import NpzReader

    reader = NpzReader(root, split, spec)
    blocks = _blocks(reader.num_rows, reader.read_unchecked, lambda _: reader.path)
    return RowSource("npz", spec, reader.num_rows, blocks, close=lambda: None)


def _open_records(""",
    ),
    Edit(
        "Add an engine",
        "preproc/criteo/engines/toy.py",
        "",
        '''"""The reference engine by another name."""

import dataclasses

from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.engines import reference


def run(engine_job: EngineJob) -> EngineResult:
    """Makes the dataset."""
    return dataclasses.replace(reference.run(engine_job), engine={"name": "toy"})
''',
    ),
    Edit(
        "Add an engine",
        "preproc/criteo/engines/__init__.py",
        "ENGINES = {\n",
        'ENGINES = {\n    "toy": "preproc.criteo.engines.toy",\n',
    ),
    Edit(
        "Add a format",
        "recsys/serve/manifest.py",
        'ArtifactFormat = Literal["eager",',
        'ArtifactFormat = Literal["exported", "eager",',
    ),
    Edit(
        "Add a format",
        "recsys/serve/manifest.py",
        "ARTIFACT_FILES: dict[ArtifactFormat, str] = {\n",
        'ARTIFACT_FILES: dict[ArtifactFormat, str] = {\n    "exported": "model.exported.pt2",\n',
    ),
    Edit(
        "Add a format",
        "recsys/serve/formats.py",
        '    _optional("onnx", "onnxscript")\n',
        '    if artifact_format == "exported":\n'
        '        dynamic = tuple({0: torch.export.Dim("batch", min=1)} for _ in examples)\n'
        "        torch.export.save(\n"
        "            torch.export.export(network, examples, dynamic_shapes=dynamic), path\n"
        "        )\n"
        "        return\n"
        '    _optional("onnx", "onnxscript")\n',
    ),
    Edit(
        "Add a format",
        "recsys/serve/formats.py",
        '    if deployment.format == "torchscript":\n',
        '    if deployment.format == "exported":\n'
        "        program = torch.export.load(path).module()\n"
        "        return lambda inputs: program(*inputs)\n"
        '    if deployment.format == "torchscript":\n',
    ),
    Edit(
        "Add a format",
        "recsys/serve/config_pbtxt.py",
        '"python": ("eager",',
        '"python": ("eager", "exported",',
    ),
    Edit(
        "Add a metric",
        "dlrm/train/metrics.py",
        "    accuracy: float\n",
        "    accuracy: float\n    toy_error: float\n",
    ),
    Edit(
        "Add a metric",
        "dlrm/train/metrics.py",
        "        accuracy=float(",
        "        toy_error=float((torch.sigmoid(logits64) - labels64).square().mean()),\n"
        "        accuracy=float(",
    ),
]


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
    for edit in EDITS:
        file = folder / edit.file
        if edit.before:
            text = file.read_text()
            assert text.count(edit.before) == 1, f"{edit.recipe}: {edit.file}: {edit.before}"
            file.write_text(text.replace(edit.before, edit.after))
        else:
            assert not file.exists()
            assert file.parent.is_dir()
            file.write_text(edit.after)
    return folder


@pytest.fixture(scope="module")
def run_there(copy):
    """Runs Python in the copy."""
    return lambda *arguments: harness.python(*arguments, folder=copy, PYTHONPATH=str(copy))


@pytest.fixture(scope="module")
def dataset(copy, run_there, tmp_path_factory):
    """A dataset of the toy engine and the toy preset."""
    folder = tmp_path_factory.mktemp("clicks")
    run_there(
        *("-m", "preproc.generate_criteo", "--output", folder / "log", "--rows", 3000, "--days", 3)
    )
    run_there(
        *("-m", "preproc.criteo", "--engine", "toy", "--preset", "toy"),
        *("--input", folder / "log", "--output", folder / "toy"),
    )
    return folder


REWRITE = """
import sys
from pathlib import Path
from recsys.data.npz import write_npz
from recsys.data.split_binary import SplitBinaryReader
for split in ("train", "validation", "test"):
    reader = SplitBinaryReader(Path(sys.argv[1]), split)
    write_npz(Path(sys.argv[2]), split, reader.read(0, reader.num_rows))
"""


@pytest.fixture(scope="module")
def npz(run_there, dataset):
    """The same dataset in the toy format."""
    folder = dataset / "npz"
    folder.mkdir()
    shutil.copyfile(dataset / "toy" / SPEC_FILE, folder / SPEC_FILE)
    run_there("-c", REWRITE, dataset / "toy", folder)
    return folder


@pytest.fixture(scope="module")
def trained(run_there, npz):
    """A run with the toy flag, preset, interaction, optimizer, dataset type and metric."""
    folder = npz.parent / "run"
    run_there(
        *("-m", "dlrm.scripts.main", "--mode", "train", "--preset", "toy"),
        *("--interaction_op", "toy_sum", "--optimizer", "toy_sign"),
        *("--dataset", npz, "--dataset_type", "npz", "--max_steps", 3, "--base_device", "cpu"),
        *("--save_checkpoint_path", folder, "--log_path", npz.parent / "log.json"),
    )
    return folder


@pytest.fixture(scope="module")
def records(trained):
    """What the run logged."""
    return harness.read_log(trained.parent / "log.json")


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.recipe}: {edit.file}")
def test_the_recipe_names_the_file(edit):
    text = recipe(edit.recipe)
    named = edit.file if edit.before else str(Path(edit.file).parent)
    assert f"`{named}`" in text or f"`{named}/`" in text


def test_a_flag_and_a_preset_reach_the_run(records):
    (settings,) = [r["data"] for r in records if r.get("type") == "LOG" and "top_bias" in r["data"]]
    assert settings["top_bias"] == 3.0, "of the preset"
    assert settings["embedding_dim"] == 4


def test_an_interaction_an_optimizer_and_a_metric_are_used(records):
    (settings,) = [r["data"] for r in records if "top_bias" in r["data"]]
    assert (settings["interaction_op"], settings["optimizer"]) == ("toy_sum", "toy_sign")
    (final,) = [r["data"] for r in records if "toy_error" in r["data"]]
    assert 0.3 < final["toy_error"] < 0.9, "logits begin at 3, a quarter of the rows are clicks"


def test_a_dataset_type_is_verified(run_there, npz):
    assert re.search(r"^test .* npz$", run_there("-m", "dataspec.verify", npz).stdout, re.MULTILINE)


def test_an_engine_and_a_preset_make_the_bytes_of_the_reference(dataset):
    prepare(
        CriteoJob(
            input=dataset / "log",
            output=dataset / "reference",
            engine="reference",
            semantics=CriteoSemantics(frequency_limit=2),
        )
    )
    toy, expected = (Manifest.load(dataset / name) for name in ("toy", "reference"))
    assert toy.fingerprint == expected.fingerprint


def test_a_format_is_deployed_and_checked(run_there, trained):
    repository = trained.parent / "models"
    done = run_there(
        *("triton/deployer.py", "--format", "exported"),
        *("--checkpoint", trained, "--repository", repository),
    )
    assert "Checked: largest difference" in done.stdout + done.stderr
    assert (repository / "dlrm" / "1" / "model.exported.pt2").is_file()
