# SPDX-License-Identifier: Apache-2.0
"""Numbers of a log as TensorBoard events."""

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

    Numbers of baselines and the ends of intervals have no curve, so only the log has them. A full
    disk ends the events, not the run.

    Args:
        folder: folder for the file of events; TensorBoard shows each folder as a run.
        step: last step of the curves in the folder to keep: that of the checkpoint from which the
            run resumes, 0 for a new run.

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
        """Writes buffered events to disk."""
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
            logger.warning(
                "`tensorboard` %s: %s; no more events are written", self._folder, error.strerror
            )
            self._writer = None
