# SPDX-License-Identifier: Apache-2.0
"""What the program of fitted models needs to run a blend of clicks."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.errors import UserError
from recsys.settings import setting
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlrm.model.clicks import ClickModel
    from dlrm.model.weights import DlrmCheckpoint
    from dlrm.train.baselines.fit_rows import FitRows
    from recsys.train.recipe import PrintLine
    from recsys_recipes.blending.clicks.stored import FittedClicksBlend, StoredClicksBlend

NAME = "blend_clicks"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClicksBlendSettings:
    """Settings of a blend."""

    blend_of: str = setting(
        "",
        "Checkpoint, or folder of a run, of the DLRM, which must be trained on the same dataset",
        used_with=OF_TRAINING,
    )


class ClicksBlendKind:
    """Fits and opens blends of clicks; see `recsys_recipes.logistic.recipe.ClicksKind`."""

    name, title = NAME, "Blend of clicks"
    settings_class = ClicksBlendSettings

    def begins_with(self, settings: ClicksBlendSettings) -> "DlrmCheckpoint":
        """Opens the DLRM.

        Raises:
            UserError: the checkpoint is not given, is damaged, or is of another model.
        """
        from recsys_recipes.blending.clicks.stored import open_first

        if not settings.blend_of:
            raise UserError(
                "`blend_of` is needed: the run of the DLRM to blend with a logistic regression",
                setting="blend_of",
            )
        return open_first(Path(settings.blend_of))

    def fit(
        self, rows: "FitRows", settings: ClicksBlendSettings, print_line: "PrintLine"
    ) -> "FittedClicksBlend":
        """Fits the logistic regression, and the weights of both models."""
        from recsys_recipes.blending.clicks.stored import fit_blend

        return fit_blend(rows, settings, print_line)

    def open_stored(self, path: Path) -> "StoredClicksBlend":
        """Opens a checkpoint, or the folder of a run."""
        from recsys_recipes.blending.clicks.stored import StoredClicksBlend

        return StoredClicksBlend.open(path)

    def parts(self, model: "ClickModel[Any]") -> "Mapping[str, ClickModel[Any]]":
        """Returns both models by name."""
        from recsys_recipes.blending.clicks.network import ClicksBlend

        assert isinstance(model, ClicksBlend)
        return {"dlrm": model.first, "logistic": model.second}


BLEND_CLICKS = ClicksBlendKind()
