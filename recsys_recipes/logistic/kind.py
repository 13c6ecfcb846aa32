# SPDX-License-Identifier: Apache-2.0
"""What the program of fitted models needs to run a logistic regression."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys_recipes.logistic.config import LogisticSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlrm.model.clicks import ClickModel
    from dlrm.train.baselines.fit_rows import FitRows
    from recsys.train.recipe import PrintLine
    from recsys_recipes.logistic.fit import FittedLogistic
    from recsys_recipes.logistic.stored import StoredLogistic

NAME = "logistic"


class LogisticKind:
    """Fits and opens logistic regressions; see `recsys_recipes.logistic.recipe.ClicksKind`."""

    name, title = NAME, "Logistic regression"
    settings_class = LogisticSettings

    def begins_with(self, settings: LogisticSettings) -> None:
        """Returns None: the fit starts from no other model."""

    def fit(
        self, rows: "FitRows", settings: LogisticSettings, print_line: "PrintLine"
    ) -> "FittedLogistic":
        """Fits the model to all training rows."""
        from recsys_recipes.logistic.fit import fit

        return fit(rows, settings, print_line)

    def open_stored(self, path: Path) -> "StoredLogistic":
        """Opens a checkpoint, or the folder of a run."""
        from recsys_recipes.logistic.stored import StoredLogistic

        return StoredLogistic.open(path)

    def parts(self, model: "ClickModel[Any]") -> "Mapping[str, ClickModel[Any]]":  # noqa: ARG002
        """Returns an empty mapping."""
        return {}


LOGISTIC = LogisticKind()
