# SPDX-License-Identifier: Apache-2.0
"""What a reproduction found: equal, different, and why it may differ."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.errors import show_names
from recsys.files.durable import write_whole_file
from recsys.files.json_text import signed
from recsys_recipes.reproduction.compare import ComparedFiles, ComparedTensors, Pair, is_same
from recsys_recipes.reproduction.dataset import ComparedDatasets

FORMAT = "recsys-recipes certificate"
FORMAT_VERSION = 1
CERTIFICATE_FILE = "certificate.json"

_MAIN_FIGURES = ("auc", "log_loss", "test_full_hr@10", "test_full_ndcg@10")
"""Figures that a line names first."""
_SHOWN_FIGURES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCheckpoint:
    """A checkpoint of a run, and the one that was trained again.

    Attributes:
        name: name of its folder.
        role: `latest`, `best`, or `checkpoint`.
        fingerprint: checksum of the names and checksums of the original's files.
        found: whether the reproduced run has a checkpoint of this step.
        files: comparison of the files; None without such a checkpoint.
        tensors: file that differs -> comparison of its tensors.
        state: values of the state that differ.
    """

    name: str
    role: str
    fingerprint: str
    found: bool
    files: ComparedFiles | None = None
    tensors: dict[str, ComparedTensors] = dataclasses.field(default_factory=dict)
    state: dict[str, Pair] = dataclasses.field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the reproduced run has the same files and state."""
        return self.files is not None and self.files.equal and not self.state

    @property
    def text(self) -> str:
        """The outcome in words."""
        if self.files is None:
            return f"the reproduced run has no checkpoint of {self.name}"
        largest = {
            name: compared.largest_difference
            for name, compared in self.tensors.items()
            if compared.largest_difference is not None
        }
        words = [self.files.text]
        if largest:
            name = max(sorted(largest), key=lambda each: largest[each])
            words.append(f"largest difference {largest[name]:.2g} in {name}")
        if self.state:
            words.append(f"the state differs in {show_names([*self.state])}")
        return ", ".join(words)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedFigures:
    """Figures of a test of both runs on the same dataset.

    Attributes:
        values: figure -> its two values.
        why_not: why the original cannot be tested on that dataset; empty if it was.
    """

    values: dict[str, Pair]
    why_not: str = ""

    @property
    def different(self) -> list[str]:
        """Names of the figures that differ."""
        return [name for name, each in self.values.items() if not is_same(*each.values())]

    @property
    def equal(self) -> bool:
        """Whether both runs were tested and all figures are equal."""
        return not self.why_not and not self.different

    @property
    def text(self) -> str:
        """The outcome in words: figures that differ, else the main ones."""
        if self.why_not:
            return f"the original cannot be tested on the rebuilt dataset: {self.why_not}"
        equal = len(self.values) - len(self.different)
        main = [name for name in _MAIN_FIGURES if name in self.values]
        shown = sorted(self.different, key=lambda name: name not in main) or main
        words = (_figure(name, **self.values[name]) for name in shown[:_SHOWN_FIGURES])
        return f"{equal} of {len(self.values)} equal: {', '.join(words)}"


def _figure(name: str, original: Any, reproduced: Any) -> str:
    numbers = original, reproduced
    if is_same(*numbers):
        return f"{name} {_number(original)} = {_number(original)}"
    texts = [f"{_number(each)}" for each in numbers]
    if texts[0] == texts[1]:
        texts = [repr(each) for each in numbers]
    return f"{name} {texts[0]} -> {texts[1]}"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The outcome of a reproduction.

    Attributes:
        run: name of the folder of the original run.
        model: name of the model.
        dataset_fingerprint: fingerprint of the original dataset.
        dataset: comparison of the datasets; None if the dataset was not made again.
        settings: settings of the training that differ.
        checkpoints: comparison of each checkpoint of the run.
        figures: comparison of the tests.
        environment: environment of both runs; that of the original is empty if not recorded.
    """

    run: str
    model: str
    dataset_fingerprint: str
    dataset: ComparedDatasets | None
    settings: dict[str, Pair]
    checkpoints: list[ComparedCheckpoint]
    figures: ComparedFigures
    environment: Pair

    @property
    def equal(self) -> bool:
        """Whether everything that was made again is equal."""
        is_same_dataset = self.dataset is None or self.dataset.files.equal
        return is_same_dataset and self._is_trained_equal and self.figures.equal

    @property
    def _is_trained_equal(self) -> bool:
        return not self.settings and all(each.equal for each in self.checkpoints)

    @property
    def reasons(self) -> list[str]:
        """What may explain differences of the checkpoint: each change of the surroundings."""
        original, reproduced = self.environment.values()
        reasons = [
            f"{name} {original[name]} -> {reproduced.get(name)}"
            for name in original
            if original[name] != reproduced.get(name)
        ]
        if not original:
            reasons.append("the environment of the original is not recorded")
        if self.settings:
            reasons.append(f"the settings differ in {show_names([*self.settings])}")
        if self.dataset is not None and not self.dataset.files.equal:
            reasons.append("the datasets differ")
        return reasons or ["nothing that is recorded explains it"]

    @property
    def reasons_of_dataset(self) -> list[str]:
        """What may explain differences of the dataset."""
        if self.dataset is None:
            return []
        reasons = []
        if self.dataset.sources:
            reasons.append(f"the raw files differ: {show_names([*self.dataset.sources])}")
        if self.dataset.settings:
            settings = show_names([*self.dataset.settings])
            reasons.append(f"the settings of the preparation differ in {settings}")
        changes = (_changed(name, **each) for name, each in self.dataset.engine.items())
        return [*reasons, *changes] or ["nothing that is recorded explains it"]

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of the file."""
        dataset = {"fingerprint": self.dataset_fingerprint, "rebuilt": self.dataset is not None}
        if self.dataset is not None:
            dataset |= {
                "equal": self.dataset.files.equal,
                **dataclasses.asdict(self.dataset),
                "may_differ_because": _why(self.dataset.files.equal, self.reasons_of_dataset),
            }
        checkpoints = [{"equal": c.equal, **dataclasses.asdict(c)} for c in self.checkpoints]
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": self.run,
            "model": self.model,
            "equal": self.equal,
            "dataset": dataset,
            "settings": self.settings,
            "checkpoints": checkpoints,
            "may_differ_because": _why(self._is_trained_equal, self.reasons),
            "figures": {"equal": self.figures.equal, **dataclasses.asdict(self.figures)},
            "environment": self.environment,
        }

    def save(self, folder: Path) -> Path:
        """Writes the certificate, which appears only when complete; returns its file."""
        file = folder / CERTIFICATE_FILE
        write_whole_file(file, signed(_without_nan(self.to_dict())))
        return file

    def lines(self) -> Iterator[str]:
        """Yields a line for each thing that was compared."""
        if self.dataset is None:
            yield "dataset: not rebuilt; its files are as its manifest lists them"
        else:
            files = self.dataset.files
            yield _line("dataset", files.text, files.equal, self.reasons_of_dataset)
        if self.settings:
            changes = (_changed(name, **each) for name, each in self.settings.items())
            yield f"settings: {', '.join(changes)}"
        for each in self.checkpoints:
            what = "checkpoint" if each.role == "checkpoint" else f"{each.role} checkpoint"
            yield _line(f"{what} {each.name}", each.text, each.equal, self.reasons)
        yield f"figures: {self.figures.text}"


def _line(what: str, outcome: str, equal: bool, reasons: list[str]) -> str:
    why = "" if equal else f"; may differ because: {'; '.join(reasons)}"
    return f"{what}: {outcome}{why}"


def _why(equal: bool, reasons: list[str]) -> list[str]:
    return [] if equal else reasons


def _changed(name: str, original: Any, reproduced: Any) -> str:
    return f"{name} {original} -> {reproduced}"


def _without_nan(value: Any) -> Any:
    """Returns a document with None for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
