# SPDX-License-Identifier: Apache-2.0
"""TensorBoard events of a run, beside its log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError


class TensorBoardEvents:
    """Writes the numbers of a log as scalars.

    Args:
        folder: receives the event file; TensorBoard shows its folders as runs.

    Raises:
        UserError: TensorBoard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "`tensorboard` needs the package of that name: pip install "
                "'recsys-recipes[tensorboard]'"
            ) from error
        try:
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UserError(
                f"`tensorboard` {folder} cannot be written: {error.strerror}"
            ) from error
        self._last_step = 0

    def record(self, step: tuple[int, ...], data: Mapping[str, Any]) -> None:
        """Writes values of a step (epoch, step), or of the run ()."""
        prefix = "" if step else "final/"
        self._last_step = step[-1] if step else self._last_step
        for name, value in data.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                tag = prefix + name.replace("@", "_at_")
                self._writer.add_scalar(tag, value, self._last_step)
        self._writer.flush()
