# SPDX-License-Identifier: Apache-2.0
"""Refuses a dataset that differs from a checkpoint's training dataset."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.settings import setting

logger = logging.getLogger(__name__)

FINGERPRINT = "dataset_fingerprint"
"""Key in the state of a checkpoint: fingerprint of the training dataset."""
SEMANTICS = "dataset_semantics"
"""Key of the settings with which the training dataset was prepared."""

_MOST_NAMED = 5
"""How many differing sizes or settings a message names."""


def ignore_fingerprint() -> bool:
    """Declares the setting `ignore_fingerprint` of a section."""
    return setting(
        False,
        "Accept a checkpoint that was trained on a dataset prepared differently; only sizes are "
        "compared",
        resumable=True,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The identity of a dataset, as a checkpoint or folder records it.

    Attributes:
        sizes: numbers of ids, such as {"items": 3706}.
        fingerprint: fingerprint of what gives the ids their meaning; None if not recorded.
        semantics: settings with which the dataset was prepared; empty if not recorded.
    """

    sizes: Mapping[str, int]
    fingerprint: str | None = None
    semantics: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_checkpoint(cls, sizes: Mapping[str, int], values: Mapping[str, Any]) -> "Origin":
        """Reads the origin from the values that a checkpoint keeps."""
        fingerprint, semantics = values.get(FINGERPRINT), values.get(SEMANTICS)
        return cls(
            sizes,
            fingerprint if isinstance(fingerprint, str) else None,
            semantics if isinstance(semantics, dict) else {},
        )

    def values(self) -> dict[str, Any]:
        """Returns the values that a checkpoint keeps, except the sizes."""
        return {FINGERPRINT: self.fingerprint, SEMANTICS: dict(self.semantics)}


def check_same_dataset(
    path: Path,
    trained_on: Origin,
    now: Origin,
    dataset: str,
    remedy: str,
    *,
    ignore_fingerprint: bool = False,
) -> None:
    """Refuses a dataset whose ids or numbers may have another meaning.

    Equal sizes prove nothing, so fingerprints and settings are compared too if both sides record
    them; otherwise a warning says that they were not.

    Args:
        path: folder of the checkpoint.
        trained_on: training dataset, as the checkpoint records it.
        now: dataset to use the checkpoint with.
        dataset: name of that dataset, for the message.
        remedy: advice for the message.
        ignore_fingerprint: compare only the sizes.

    Raises:
        CheckpointError: the sizes, the settings or the fingerprints differ.
    """
    from recsys.train.checkpoint import CheckpointError  # imports torch, which flags do not need

    sizes = _differing(trained_on.sizes, now.sizes)
    if sizes:
        was, have = _sized(trained_on, sizes), _sized(now, sizes)
        raise CheckpointError(
            f"{path}: was trained on {was}, but {dataset} has {have}; {remedy}", path=path
        )
    if ignore_fingerprint:
        return
    if trained_on.fingerprint is None or now.fingerprint is None:
        unknown = str(path) if trained_on.fingerprint is None else dataset
        logger.warning(
            "%s records no fingerprint of its dataset: only the sizes of %s and %s were compared",
            unknown,
            path,
            dataset,
        )
        return
    earlier, later = dict(_leaves(trained_on.semantics)), dict(_leaves(now.semantics))
    settings = _differing(earlier, later)
    if earlier and later and settings:
        was, have = _prepared(earlier, settings), _prepared(later, settings)
    elif trained_on.fingerprint != now.fingerprint:
        was, have = _fingerprinted(trained_on), _fingerprinted(now)
    else:
        return
    raise CheckpointError(
        f"{path}: was trained on {was}, but {dataset} has {have}; {remedy}, or add "
        "`ignore_fingerprint` to use the checkpoint with this dataset anyway",
        setting="ignore_fingerprint",
        path=path,
    )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the first names whose values differ."""
    names = sorted(one.keys() | other.keys())
    return [name for name in names if one.get(name) != other.get(name)][:_MOST_NAMED]


def _sized(origin: Origin, names: list[str]) -> str:
    return ", ".join(f"{origin.sizes.get(name, 'no')} {name}" for name in names)


def _prepared(settings: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {settings.get(name, 'unknown')}" for name in names)


def _leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested settings by path, such as schema.columns.price.rule."""
    columns = isinstance(values, list) and all(isinstance(value, dict) for value in values)
    if columns and values:
        values = {str(value.get("name", i)): value for i, value in enumerate(values)}
    if not isinstance(values, Mapping):
        yield name, values
        return
    for key, value in values.items():
        yield from _leaves(value, f"{name}.{key}" if name else key)


def _fingerprinted(origin: Origin) -> str:
    names = list(origin.sizes)
    what = _sized(origin, names) if len(names) == 1 else "a dataset"
    return f"{what} (dataset fingerprint {origin.fingerprint})"
