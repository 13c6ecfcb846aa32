# SPDX-License-Identifier: Apache-2.0
"""Refuses a dataset that differs from a checkpoint's training dataset."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from recsys.train.checkpoint import CheckpointError

_MOST_NAMED = 5
"""Differing sizes that a message names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The identity of a dataset, as a checkpoint or folder records it.

    Attributes:
        sizes: numbers of ids, such as {"items": 3706}.
        fingerprint: fingerprint of the prepared files; None if none is recorded.
    """

    sizes: Mapping[str, int]
    fingerprint: str | None = None


def check_same_dataset(
    path: Path, trained_on: Origin, now: Origin, dataset: str, remedy: str
) -> None:
    """Refuses a dataset whose ids may mean something else.

    Equal sizes alone prove nothing, so fingerprints are compared if both are recorded.

    Args:
        path: folder of the checkpoint.
        trained_on: training dataset, as the checkpoint records it.
        now: dataset to use the checkpoint with.
        dataset: name of that dataset for the message.
        remedy: advice for the message.

    Raises:
        CheckpointError: the sizes or the fingerprints differ.
    """
    names = trained_on.sizes.keys() | now.sizes.keys()
    differing = [n for n in sorted(names) if trained_on.sizes.get(n) != now.sizes.get(n)]
    known = trained_on.fingerprint is not None and now.fingerprint is not None
    if not differing and not (known and trained_on.fingerprint != now.fingerprint):
        return
    shown = (differing or sorted(names))[:_MOST_NAMED]
    raise CheckpointError(
        f"{path}: was trained on {_describe(trained_on, shown)}, {dataset} has "
        f"{_describe(now, shown)}; {remedy}"
    )


def _describe(origin: Origin, names: list[str]) -> str:
    sizes = ", ".join(f"{origin.sizes.get(name, 'no')} {name}" for name in names)
    if origin.fingerprint is None:
        return sizes
    return f"{sizes} (dataset fingerprint {origin.fingerprint})"
