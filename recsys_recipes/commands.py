# SPDX-License-Identifier: Apache-2.0
"""The commands of `recsys-recipes`, and the program that each of them runs.

The programs declare the flags. Only the ten that the help shows first are chosen here.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from recsys.models.registry import FITTED


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A module with a command line.

    Attributes:
        usage: arguments of a usual call.
        flags: settings whose flags its help shows first, separated by spaces; empty for a program
            with few flags.
        arguments: arguments put before the user's, with the program's own names.
        needs: settings that a usual call must give -> what they name.
        names: setting -> flag of the command, where the program's own flag has another name.
        defaults: setting -> default of the command, where the program's own differs.
    """

    module: str
    summary: str
    usage: str
    flags: str = ""
    arguments: tuple[str, ...] = ()
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def most_used(self) -> tuple[str, ...]:
        """The names of `flags`."""
        return tuple(self.flags.split())

    def flag(self, setting: str) -> str:
        """Returns the flag of a setting in the command."""
        return self.names.get(setting, setting)


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A word after `recsys-recipes`.

    Attributes:
        programs: second word -> program; the only key is empty if there is no second word.
        default: second word if the user gives none.
        finds_model: without a second word, the checkpoint decides the model.
    """

    summary: str
    programs: Mapping[str, Program]
    default: str | None = None
    finds_model: bool = False


def _single(
    module: str,
    summary: str,
    usage: str,
    flags: str = "",
    *arguments: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Command:
    program = Program(module, summary, usage, flags, arguments, names=names)
    return Command(summary, {"": program}, default="")


_OF_FITTED = {
    "dataset_path": "dataset",
    "export_root": "output",
    "load_checkpoint_path": "checkpoint",
}
_OF_BERT4REC = _OF_FITTED | {
    "config": "preset",
    "train_batch_size": "batch_size",
    "num_epochs": "epochs",
}
_OF_DLRM = {"save_checkpoint_path": "output", "load_checkpoint_path": "checkpoint"}
"""Commands have one name for a setting; programs keep the names of the programs they follow."""

_TRAINED = {"load_checkpoint_path": "a trained model"}
_PREDICTED = _TRAINED | {"predictions": "the file to write"}
"""Settings that the commands `test` and `predict` need."""

_LOG = {"log_path": ""}
"""Default of commands: a training logs to its output folder, and other runs write no log."""

_RATINGS = (
    "input output format min_user_count min_item_count kcore min_rating split engine overwrite"
)
_DLRM, _BERT4REC = "dlrm.scripts.main", "bert4rec.scripts.main"
_RECOMMEND = "--dataset data/ml-1m --checkpoint data/ml-1m-run --recommend_users all"
_RECOMMEND_FLAGS = (
    "dataset_path load_checkpoint_path recommend_users recommend_input top_k output_format "
    "num_threads test_batch_size ignore_fingerprint"
)
_FITTED = {name: (entry.summary, entry.flags) for name, entry in FITTED.items()} | {
    "blend": ("A trained model plus the best of these", "blend_of blend_with weights")
}
"""Models of ratings that are fitted at once: what they are, and their settings."""


_OF_CLICKS = {
    "logistic": ("Clicks, by a logistic regression that is fitted at once", "dataset_subset"),
    "blend_clicks": ("A trained DLRM plus a logistic regression", "blend_of"),
}
"""The same of clicks."""


def _fitted(
    mode: str,
    usage: str,
    flags: str,
    models: Mapping[str, tuple[str, str]] = _FITTED,
    names: Mapping[str, str] = _OF_FITTED,
) -> dict[str, Program]:
    return {
        name: Program(
            "recsys_recipes.fitted",
            summary if mode == "train" else f"With {name}",
            usage,
            f"{flags} {settings}" if mode == "train" else flags,
            arguments=(name, f"--mode={mode}"),
            needs=_PREDICTED if mode == "predict" else {},
            names=names,
            defaults=_LOG,
        )
        for name, (summary, settings) in models.items()
    }


def _fitted_clicks(mode: str, usage: str, flags: str) -> dict[str, Program]:
    return _fitted(mode, usage, flags, _OF_CLICKS, _OF_DLRM)


_PREDICT = "--dataset data/new --checkpoint data/dlrm-run --predictions data/new.csv"
_PREDICT_FLAGS = (
    "dataset load_checkpoint_path predictions eval_split dataset_type test_batch_size "
    "num_threads ignore_fingerprint"
)
_STUDY = "--study data/study.db --search lr=1e-4..1e-2"

COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "From generated data to a trained model, and how good it is",
        {
            "dlrm": Program(
                "benchmark.demo",
                "From click logs to a DLRM, its AUC and latency",
                "--folder demo --report",
                "folder rows report",
            ),
            "bert4rec": Program(
                "benchmark.demo_bert4rec",
                "From ratings to a BERT4Rec that recommends",
                "--folder demo/bert4rec --report",
                "folder interactions report",
            ),
        },
        default="dlrm",
    ),
    "generate": Command(
        "Write raw click logs or ratings whose best model is known",
        {
            "criteo": Program(
                "preproc.generate_criteo",
                "Click logs in Criteo's format",
                "--output data/criteo --rows 4000000 --days 4",
                "output rows days seed best_auc click_rate gzip cardinalities threads overwrite",
            ),
            "ratings": Program(
                "preproc.generate_ratings",
                "Ratings in the format of MovieLens or Amazon",
                "--output data/ratings.csv --users 2000 --items 400 --interactions 40000",
                "output users items interactions format titles seed continuation popularity "
                "overwrite",
            ),
        },
    ),
    "prepare": Command(
        "Make a dataset from raw logs or ratings",
        {
            "criteo": Program(
                "preproc.clicks",
                "Criteo's click logs, for DLRM",
                "--input data/criteo --output data/dlrm",
                "input output preset frequency_limit split_fractions dictionary_days format engine "
                "memory_limit overwrite",
            ),
            "clicks": Program(
                "preproc.clicks",
                "Your own click log, for DLRM",
                "--input clicks.csv --schema schema.yaml --output data/clicks",
                "input output schema engine memory_limit overwrite",
            ),
            "ratings": Program(
                "preproc.movielens",
                "MovieLens' ratings, or your orders or events, for BERT4Rec",
                "--input data/raw/ml-1m --output data/ml-1m",
                _RATINGS,
            ),
            "amazon": Program(
                "preproc.amazon",
                "Amazon's ratings, for BERT4Rec",
                "--input data/raw/ratings.csv --output data/amazon",
                _RATINGS,
            ),
        },
    ),
    "verify": _single(
        "dataspec.verify", "Check a dataset before it is trained on", "DIR [--quick]"
    ),
    "train": Command(
        "Train a model on a dataset",
        {
            "dlrm": Program(
                _DLRM,
                "Clicks, on a dataset of prepare criteo or clicks",
                "--dataset data/dlrm --output data/dlrm-run",
                "dataset preset save_checkpoint_path resume batch_size epochs lr optimizer "
                "embedding_dim eval_split",
                arguments=("--mode=train",),
                names=_OF_DLRM,
                defaults={"preset": "auto", **_LOG},
            ),
            **_fitted_clicks(
                "train",
                "--dataset data/clicks --output data/run",
                "dataset save_checkpoint_path eval_split dataset_type baselines log_path "
                "num_threads",
            ),
            "bert4rec": Program(
                _BERT4REC,
                "The next item, on a dataset of prepare ratings or amazon",
                "--dataset data/ml-1m --output data/ml-1m-run",
                "dataset_path config export_root resume train_batch_size num_epochs lr max_len "
                "emb_dim patience",
                arguments=("--mode=train",),
                names=_OF_BERT4REC,
                defaults={"config": "auto", **_LOG},
            ),
            "auto": Program(
                "recsys_recipes.train_auto",
                "The best of a network, simple models and their blend",
                "--dataset data/ml-1m --output data/ml-1m-run",
                "dataset output budget base_device num_threads",
            ),
            **_fitted(
                "train",
                "--dataset data/ml-1m --output data/ml-1m-run",
                "dataset_path export_root baselines ranks_file top_k",
            ),
        },
    ),
    "tune": Command(
        "Search settings of a training on its validation split",
        {
            "dlrm": Program(
                "recsys_recipes.tune",
                "Of DLRM",
                f"{_STUDY} --dataset data/dlrm --preset small --eval_split validation",
                "study search trials",
                arguments=("dlrm",),
                names=_OF_DLRM,
            ),
            "bert4rec": Program(
                "recsys_recipes.tune",
                "Of BERT4Rec",
                f"{_STUDY} --dataset data/ml-1m --preset fast",
                "study search trials",
                arguments=("bert4rec",),
                names=_OF_BERT4REC,
            ),
        },
    ),
    "test": Command(
        "Measure a trained model on a dataset",
        {
            "dlrm": Program(
                _DLRM,
                "AUC and log loss; --mode inference_benchmark for latency",
                "--dataset data/dlrm --checkpoint data/dlrm-run",
                "dataset load_checkpoint_path eval_split dataset_type test_batch_size log_path "
                "base_device mode num_threads inference_benchmark_batch_sizes",
                arguments=("--mode=test",),
                needs=_TRAINED,
                names=_OF_DLRM,
                defaults=_LOG,
            ),
            **_fitted_clicks(
                "test",
                "--dataset data/clicks --checkpoint data/run",
                "dataset load_checkpoint_path eval_split dataset_type test_batch_size baselines "
                "gauc_by log_path num_threads mode",
            ),
            "bert4rec": Program(
                _BERT4REC,
                "Hit rate and NDCG among all items",
                "--dataset data/ml-1m --checkpoint data/ml-1m-run",
                "dataset_path load_checkpoint_path test_batch_size ranks_file report log_path "
                "base_device mode num_threads",
                arguments=("--mode=test",),
                needs=_TRAINED,
                names=_OF_BERT4REC,
                defaults=_LOG,
            ),
            **_fitted(
                "test",
                "--dataset data/ml-1m --checkpoint data/ml-1m-run",
                "dataset_path load_checkpoint_path baselines ranks_file lists_file top_k log_path "
                "test_batch_size num_threads mode",
            ),
        },
        finds_model=True,
    ),
    "predict": Command(
        "Click probabilities of the rows of a dataset, with a trained model",
        {
            "dlrm": Program(
                _DLRM,
                "With DLRM",
                _PREDICT,
                f"{_PREDICT_FLAGS} base_device",
                arguments=("--mode=predict",),
                needs=_PREDICTED,
                names=_OF_DLRM,
                defaults=_LOG,
            ),
            **_fitted_clicks("predict", _PREDICT, _PREDICT_FLAGS),
        },
        finds_model=True,
    ),
    "recommend": Command(
        "Recommend items for histories, with a trained model",
        {
            "bert4rec": Program(
                _BERT4REC,
                "With BERT4Rec",
                _RECOMMEND,
                f"{_RECOMMEND_FLAGS} base_device",
                arguments=("--mode=recommend",),
                names=_OF_BERT4REC,
            ),
            **_fitted("recommend", _RECOMMEND, _RECOMMEND_FLAGS),
        },
        finds_model=True,
    ),
    "reproduce": _single(
        "recsys_recipes.reproduce",
        "Make a run again from its raw files, and certify what is equal",
        "RUN --input data/raw --output data/again",
    ),
    "deploy": _single(
        "recsys_recipes.serving.deploy",
        "Put a checkpoint into a repository of models to serve",
        "--checkpoint data/dlrm-run --repository data/models",
        "checkpoint repository name dataset raw_ids raw backend quantize top_k rollback",
    ),
    "serve": _single(
        "recsys_recipes.serving.serve",
        "Run a Triton server on such a repository",
        "--repository data/models --http_port 8000",
        "repository http_port grpc_port metrics_port health_port host models poll_secs threads "
        "log_file",
    ),
    "ask": _single(
        "recsys_recipes.serving.ask",
        "Ask a server by requests or on a page; compare and measure it",
        "--url 127.0.0.1:8000 --model dlrm --mode page",
        "url model mode request dataset checkpoint version protocol batch_sizes concurrency",
    ),
    "bench": _single(
        "benchmark.run",
        "Run benchmarks, record and compare them",
        "dlrm_small --repeats 5",
        "repeats output records beside most_repeats first_seed",
    ),
    "doctor": _single(
        "recsys_recipes.doctor", "Show what works here, and how to add the rest", "[--json]"
    ),
}
"""Command -> its programs, in the order in which a new user needs them."""
