# SPDX-License-Identifier: Apache-2.0
"""Small trained models in several generations, and what each must answer offline."""

import contextlib
import dataclasses
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert4rec.serve.served import ServedBert4Rec
from dlrm.model.weights import DlrmCheckpoint
from dlrm.serve.native import NativeDlrm
from preproc.clicks.serving.line_transform import LineTransform
from recsys.serve.manifest import FEATURE_FILE
from recsys.serve.served import ServedModel
from recsys_recipes.serving import deploy
from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests import harness
from tests.bert4rec import conftest as bert4rec
from tests.dlrm import conftest as dlrm
from tests.dlrm.days import FIRST
from tests.preproc.clicks.rows import extend, good_text, without_labels
from tests.recsys.serve.checkpoints import logits_of
from tests.triton.test_supervisor import Served, serving

Arrays = dict[str, Any]

GENERATIONS = 4
POOL = 4096
"""Rows that requests are made of; the largest request is all of them."""
TOLERANCE = 1e-5
"""Of a deployment: how much a served number may differ from the checkpoint's."""
_MOST_VERSIONS = 10_000
_CPU = torch.device("cpu")
_NEAR = 1e-3
"""Lists of items with scores as near as this may come in another order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A served model.

    Attributes:
        most_rows: of a request.
        forms: way to ask -> tensors of the pool's rows.
        answers: for each generation, way to ask -> outputs for the pool's rows.
        tolerance: of a number; 0 compares bits.
        checkpoints: folder of each generation.
        deltas: delta from each generation to the next one.
        flags: of a deployment of a generation.
        generation_of: version -> its generation, or -1; shared with the process that asks.
    """

    name: str
    most_rows: int
    forms: Mapping[str, Arrays]
    answers: Sequence[Mapping[str, Arrays]]
    tolerance: float
    checkpoints: Sequence[Path]
    deltas: Sequence[Path]
    flags: Callable[[int], Sequence[str]]
    generation_of: Any = dataclasses.field(
        default_factory=lambda: multiprocessing.RawArray("i", [-1] * _MOST_VERSIONS)
    )

    def rows(self, form: str, start: int, count: int) -> Arrays:
        """Returns a request of rows of the pool."""
        return {name: array[start : start + count] for name, array in self.forms[form].items()}

    def fault(self, version: int, form: str, start: int, outputs: Arrays) -> str:
        """Compares an answer with the offline one of the version that gave it."""
        if not 0 < version < _MOST_VERSIONS or self.generation_of[version] < 0:
            return f"version {version} was never deployed"
        generation = self.generation_of[version]
        for name, pool in self.answers[generation][form].items():
            got = outputs.get(name)
            expected = pool[start : start + (0 if got is None else len(got))]
            if got is None or got.dtype != expected.dtype or got.shape != expected.shape:
                return f"{name}: {got!r} of another type or shape than {expected!r}"
            if got.dtype.kind == "f" and self.tolerance:
                equal = np.abs(got - expected) <= self.tolerance
            else:
                equal = got == expected
            if not equal.all():
                row = int(np.argwhere(~equal)[0][0])
                return f"row {row}: {name} {got[row].tolist()} is not {expected[row].tolist()}"
        return ""


@contextlib.contextmanager
def serving_models() -> Iterator[tuple[Served, Path, list[Model]]]:
    """Trains the models and serves them; gives the server, its repository and the models."""
    with tempfile.TemporaryDirectory(prefix="load_") as folder:
        repository = Path(folder) / "models"
        repository.mkdir()
        print("training", flush=True)
        models = prepare(Path(folder) / "prepared", repository)
        flags = ("--poll_secs=1", "--grpc_port=0", f"--log_file={Path(folder) / 'log'}")
        with serving(repository, *flags) as served:
            yield served, repository, models


def prepare(folder: Path, repository: Path) -> list[Model]:
    """Trains the models and puts the first generation of each into a repository."""
    offline = folder / "offline"
    folder.mkdir()
    with (folder / "log").open("w") as log, contextlib.redirect_stdout(log):
        models = [*_clicks(folder, offline), _items(folder, offline)]
    for model in models:
        shutil.copytree(offline / model.name, repository / model.name)
        for version in model.checkpoints[1:]:
            number = 1 + model.checkpoints.index(version)
            shutil.rmtree(repository / model.name / str(number))
        model.generation_of[1] = 0
    return models


def _deploy(repository: Path, *flags: str) -> None:
    assert harness.call(deploy, f"--repository={repository}", *flags) == 0


def _clicks(folder: Path, offline: Path) -> list[Model]:
    """Trains a DLRM day by day; serves it by both backends."""
    logs, days, run = folder / "logs", folder / "days", folder / "run"
    logs.mkdir()
    train = dlrm.make_program(folder)
    names = {"native": "clicks", "python": "python_clicks"}

    def flags(backend: str, generation: int) -> Sequence[str]:
        dataset = days / f"day_{generation:04d}"
        return (f"--name={names[backend]}", "--raw", f"--backend={backend}", f"--dataset={dataset}",
                *(["--instances=2"] if backend == "python" else []))  # fmt: skip

    checkpoints = [folder / f"run_{generation}" for generation in range(GENERATIONS)]
    for generation, checkpoint in enumerate(checkpoints):
        log = logs / f"log_{generation}"
        log.write_bytes(good_text(60 if generation else 3000, generation, vocabulary=600))
        extend(days, log, FIRST)
        resume = ("--resume",) if generation else ()
        paths = (f"--dataset={days}", f"--save_checkpoint_path={run}")
        train(*paths, "--grow", "--batch_size=64", *resume)
        shutil.copytree(run, checkpoint)
        for backend in names:
            delta = _delta(folder, names[backend], generation)
            written = [f"--delta={delta}"] if generation else []
            _deploy(offline, f"--checkpoint={checkpoint}", *flags(backend, generation), *written)

    lines = without_labels(good_text(POOL, seed=99, vocabulary=900)).splitlines()
    known = LineTransform(offline / "clicks" / "1" / FEATURE_FILE)
    numerical, categorical, _ = known.transform(lines)
    forms: dict[str, Arrays] = {
        "line": {"line": np.array(lines, np.object_)[:, None]},
        "features": {"numerical": numerical, "categorical": categorical},
    }
    of_checkpoints = [
        logits_of(DlrmCheckpoint.open(checkpoint).load(), forms["features"])
        for checkpoint in checkpoints
    ]
    models = []
    for backend, name in names.items():
        served: type[ServedModel] = NativeDlrm if backend == "native" else ServedRawClicks
        answers = _answers(served, offline / name, forms)
        for answer, logits in zip(answers, of_checkpoints, strict=True):
            assert np.abs(answer["features"]["logit"] - logits).max() <= TOLERANCE
        changes = np.abs(np.diff([answer["line"]["logit"] for answer in answers], axis=0))
        assert np.median(changes) > 100 * TOLERANCE, "versions answer alike"
        deltas = [_delta(folder, name, generation) for generation in range(1, GENERATIONS)]
        models.append(
            Model(
                name,
                POOL,
                forms,
                answers,
                # One sample has the same bits in every batch of the native backend.
                0.0 if backend == "native" else TOLERANCE,
                checkpoints,
                deltas,
                lambda generation, backend=backend: flags(backend, generation),
            )
        )
    return models


def _delta(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}_{generation}.delta"


def _answers(
    served: type[ServedModel], versions: Path, forms: Mapping[str, Arrays]
) -> list[dict[str, Arrays]]:
    opened = [served.open(versions / str(1 + i), _CPU) for i in range(GENERATIONS)]
    return [{form: dict(each.respond(rows)) for form, rows in forms.items()} for each in opened]


def _items(folder: Path, offline: Path) -> Model:
    """Trains BERT4Recs from several seeds, in one repository."""
    ratings = folder / "ratings"
    ratings.mkdir()
    bert4rec.write_dataset(ratings, bert4rec.make_sequences())
    checkpoints = [folder / f"items_{generation}" for generation in range(GENERATIONS)]
    flags = ("--name=items", "--backend=python", "--max_batch_size=256")
    deltas = [_delta(folder, "items", generation) for generation in range(1, GENERATIONS)]
    for generation, checkpoint in enumerate(checkpoints):
        paths = (f"--dataset_path={ratings}", f"--export_root={checkpoint}")
        bert4rec.make_program(folder)(*paths, "--num_epochs=3", f"--seed={generation}")
        written = [f"--delta={deltas[generation - 1]}"] if generation else []
        _deploy(offline, f"--checkpoint={checkpoint}", *flags, *written)
    drawn = np.random.default_rng(0).integers(0, bert4rec.NUM_ITEMS + 1, (POOL, 8))
    drawn[:, -1] = np.maximum(drawn[:, -1], 1)  # one item at least
    forms: dict[str, Arrays] = {"history": {"history": drawn.astype(np.int64)}}
    answers = _answers(ServedBert4Rec, offline / "items", forms)
    scores = np.stack([answer["history"]["scores"] for answer in answers])
    clear = (np.diff(scores, axis=2) < -_NEAR).all(axis=(0, 2))
    assert clear.sum() >= 256, "too few histories without near scores"
    forms = {"history": {"history": forms["history"]["history"][clear]}}
    answers = [
        {"history": {name: array[clear] for name, array in answer["history"].items()}}
        for answer in answers
    ]
    # Float32 scores of another batch round otherwise.
    return Model(
        "items", 256, forms, answers, TOLERANCE, checkpoints, deltas, lambda generation: flags
    )
