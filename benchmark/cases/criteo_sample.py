# SPDX-License-Identifier: Apache-2.0
"""DLRM compared with a linear model and trees on real clicks.

The 100,000 rows of Criteo Kaggle stay in order: the first 65,000 train, the next 5,000 choose
settings, the last 30,000 are tested once. The settings of DLRM (preset criteo_sample) and of the
peers were chosen on the 5,000 rows. Each seed of DLRM runs the public command lines and predicts
with the epoch that is best on the 5,000 rows. The difference from the linear model is that of the
mean over the seeds, with the interval of a paired bootstrap of the 30,000 rows. Each further
variant changes one thing.
"""

import dataclasses
import functools
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from benchmark.case import Case, Group, Key, Values
from benchmark.commands import recsys_data
from benchmark.compare_predictions import Predictions, compare, read
from benchmark.programs import DLRM, run_module, run_training
from benchmark.record import Record
from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from dlrm.train.baselines.trees import Trees
from preproc.clicks.schema.row_format import NUM_NUMERICAL
from recsys.errors import UserError
from recsys.models.logistic.regression import LogisticRegression
from recsys.models.logistic.rows import SplitRows, spread
from recsys.settings import require_positive, setting

TRAIN, VALIDATION, ALL = 65_000, 70_000, 100_000
BINS = "--bin_numerical"
PREPROCESSING = (
    "--preset=kaggle",
    "--frequency_limit=2",
    f"--split_rows={TRAIN},{VALIDATION - TRAIN},-1",
    BINS,
)
DLRM_FLAGS = ("--preset=criteo_sample",)

_SAMPLES = 1000
_LOWER = "from (95%)"
_LINEAR = "logistic regression, binned numbers"


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One change to the preset.

    Attributes:
        preprocessing: flags that come after `PREPROCESSING`.
        training: flags that come after `DLRM_FLAGS`.
    """

    name: str
    preprocessing: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


_NARROW = ("--embedding_dim=16", "--bottom_mlp_sizes=64,16")
_ONCE = ("--epochs=1", "--noreset_embeddings")
PRESET = Variant("preset criteo_sample")
VARIANTS = (
    PRESET,
    Variant("without bins of numbers", (f"--no{BINS[2:]}",)),
    Variant("one epoch", (), _ONCE),
    Variant("three epochs of the same embeddings", (), ("--noreset_embeddings",)),
    Variant("16 columns", (), _NARROW),
    Variant("16 columns, one epoch, no bins", (f"--no{BINS[2:]}",), (*_NARROW, *_ONCE)),
    Variant("ids seen once too", ("--frequency_limit=1",)),
    Variant("ids seen four times", ("--frequency_limit=4",)),
    Variant("dropout 0.2", (), ("--dropout=0.2",)),
    Variant("no weight decay of embeddings", (), ("--embedding_weight_decay=0",)),
    Variant("top MLP 128-64", (), ("--top_mlp_sizes=128,64,1",)),
    Variant("DCNv2", (), ("--interaction_op=dcnv2", "--dcn_low_rank_dim=32")),
)


def default_data() -> Path:
    """Returns the file of the sample in $RECSYS_DATA, else in ../shared/data."""
    return recsys_data() / "criteo_kaggle" / "sample_100k.tsv.gz"


def prepare(data: Path, dataset: Path, *flags: str) -> None:
    """Prepares the dataset from the raw rows, with further flags."""
    run_module("preproc.clicks", f"--input={data}", f"--output={dataset}", *PREPROCESSING, *flags)


def predict(
    dataset: Path, folder: Path, seed: int, flags: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Trains with one seed; returns the logits of the test rows."""
    checkpoint, predictions = folder / f"seed_{seed}", folder / f"seed_{seed}.parquet"
    training = ("--mode=train", f"--dataset={dataset}", f"--seed={seed}", "--eval_split=validation")
    saved = ("--baselines=", f"--save_checkpoint_path={checkpoint}")
    run_training(DLRM, *training, *saved, *DLRM_FLAGS, *flags)
    prediction = ("--mode=predict", f"--dataset={dataset}", f"--predictions={predictions}")
    run_module(DLRM, *prediction, f"--load_checkpoint_path={checkpoint}")
    return read(predictions)[1]


def predictions_of_peers(dataset: Path) -> dict[str, Predictions]:
    """Fits the baselines of a test to a prepared dataset; returns their logits of the test rows."""
    opened = OpenedDataset.open(DataConfig(dataset=str(dataset)), NUM_NUMERICAL)
    train, validation, test = (
        SplitRows.read(reader, spread(0, reader.num_rows, reader.num_rows))
        for reader in map(opened.rows, ("train", "validation", "test"))
    )
    linear = LogisticRegression.fit(train, validation, opened.spec.table_sizes, refit=False)
    trees = Trees.fit(train, validation, 1, shares_id_zero=opened.shares_id_zero, refit=False)
    print(f"{_LINEAR}: L2 {linear.penalty:g}; LightGBM {trees.chosen}", flush=True)
    return {
        name: Predictions(test.labels, np.concatenate([model.logits(b) for b in test.blocks]))
        for name, model in ((_LINEAR, linear), ("LightGBM", trees))
    }


def metrics(name: str, runs: Sequence[Predictions], linear: Predictions) -> Values:
    """Returns mean metrics of seeds and the gain over the linear model."""
    rows = ALL - VALIDATION
    once = np.ones(rows, np.int64)
    aucs, losses = [r.auc(once) for r in runs], [r.log_loss(once) for r in runs]
    auc = compare(linear, runs, rows, _SAMPLES, 0)[0]
    values = {
        "mean test AUC": float(np.mean(aucs)),
        "lowest": min(aucs),
        "highest": max(aucs),
        "mean test log loss": float(np.mean(losses)),
        "AUC above the linear model": auc.second - auc.first,
        _LOWER: auc.low,
        "to (95%)": auc.high,
    }
    return {Key(name, metric): value for metric, value in values.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CriteoSample(Case):
    """The preset, its variants and the peers; means over seeds."""

    repeats: ClassVar[int] = 1
    lower: ClassVar[frozenset[str]] = frozenset(("mean test log loss",))

    seeds: int = setting(5, "Training runs of each variant, with seeds 1, 2, ...")
    variants: int = setting(len(VARIANTS), "Number of variants to train, the preset first")

    def __post_init__(self) -> None:
        """Refuses counts below one."""
        require_positive(self, "seeds", "variants")

    def config(self) -> dict[str, Any]:
        """Returns the flags of the preset."""
        return {"preprocessing": " ".join(PREPROCESSING), "DLRM": " ".join(DLRM_FLAGS)}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the peers and each variant."""
        data = default_data()
        if not data.is_file():
            raise UserError(f"{data} does not exist; set RECSYS_DATA to the folder of real data")
        with gzip.open(data) as file:
            lines = file.read().splitlines()
        if len(lines) != ALL:
            raise UserError(f"{data}: {len(lines)} rows, expected {ALL}")
        labels = np.array([line[:1] == b"1" for line in lines])
        prepare(data, folder / "peers")
        peers = predictions_of_peers(folder / "peers")
        linear, tested = peers[_LINEAR], labels[VALIDATION:]

        def of_peer(name: str, _seed: int) -> Values:
            return metrics(name, [peers[name]], linear)

        def of_variant(number: int, _seed: int) -> Values:
            variant, work = VARIANTS[number], folder / f"variant_{number}"
            prepare(data, work / "dataset", *variant.preprocessing)
            seeds = range(1, self.seeds + 1)
            logits = [predict(work / "dataset", work, seed, variant.training) for seed in seeds]
            runs = [Predictions(tested, values) for values in logits]
            values = dict(metrics(f"DLRM, {variant.name}", runs, linear))
            if variant is PRESET:
                mean = np.mean([1 / (1 + np.exp(-values)) for values in logits], axis=0)
                together = Predictions(tested, np.log(mean) - np.log1p(-mean))
                name = f"DLRM, mean prediction of {self.seeds} seeds"
                values |= metrics(name, [together], linear)
            return values

        candidates = {name: functools.partial(of_peer, name) for name in peers}
        for number, variant in enumerate(VARIANTS[: self.variants]):
            candidates[variant.name] = functools.partial(of_variant, number)
        yield Group(candidates=candidates, once=True)

    def fault(self, records: Sequence[Record]) -> str:
        """Reports a preset that is no better than the linear model."""
        name = f"DLRM, {PRESET.name}"
        low = next(r.value for r in records if (r.candidate, r.metric) == (name, _LOWER))
        return "" if low is not None and low > 0 else f"{name} is no better than {_LINEAR}"


CASE = CriteoSample
