# SPDX-License-Identifier: Apache-2.0
"""Serves models of clicks that take raw rows.

A server imports this module for each instance, so it imports nothing that only exports need.
"""

from pathlib import Path
from typing import Self

import torch

from preproc.clicks.serving.line_transform import LineTransform
from recsys.serve.manifest import FEATURE_FILE, Deployment
from recsys.serve.raw_rows import ServedRawRows
from recsys_recipes.models import served_clicks


class ServedRawClicks(ServedRawRows):
    """A deployed model of clicks that takes raw rows; its version folder names its kind."""

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        model = served_clicks(Deployment.load(folder).kind).open(folder, device)
        return cls(model, LineTransform(folder / FEATURE_FILE))
