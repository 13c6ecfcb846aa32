# SPDX-License-Identifier: Apache-2.0
"""The numbers of a log as events for TensorBoard."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.installation import command_for
from recsys.train.measure.scalars import Scalars, score_of

logger = logging.getLogger(__name__)


def import_writer() -> Any:
    """Returns PyTorch's class that writes events.

    Raises:
        UserError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"`tensorboard` needs TensorBoard, which is not installed: {command_for('tensorboard')}"
        ) from error
    return SummaryWriter


class Events:
    """Writes the numbers of a training and its evaluations as events.

    Those of baselines and the ends of intervals, which have no curve, stay in the log alone. A disk
    that fills up ends the events, not the run.

    Args:
        folder: gets a file of events; TensorBoard shows each folder as a run.
        settings: of the run.
        step: the last step of the run's curves in the folder that is kept: that of the checkpoint
            from which it goes on, 0 for a new run.

    Raises:
        UserError: TensorBoard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        self._folder = folder
        self._scalars = Scalars()
        try:
            self._writer: Any = import_writer()(str(folder), purge_step=step + 1)
        except OSError as error:
            raise UserError(
                f"`tensorboard` {folder} cannot be written: {error.strerror}"
            ) from error
        self.record("PARAMETER", settings)

    def record(self, step: object, data: Mapping[str, Any]) -> None:
        """Writes an entry of the log."""
        for tag, at, value in self._scalars.of(step, data):
            score = score_of(tag.partition("/")[2])
            if score is None or score.is_of_model:
                self._call("add_scalar", tag, value, at)

    def flush(self) -> None:
        """Writes out what is kept back."""
        self._call("flush")

    def close(self) -> None:
        """Ends the file."""
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*arguments)
        except OSError as error:
            logger.warning("`tensorboard` %s: %s; its events end", self._folder, error.strerror)
            self._writer = None
