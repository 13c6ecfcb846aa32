# SPDX-License-Identifier: Apache-2.0
"""Finds problems of a tested model and its data."""

from collections.abc import Sequence

from dlrm.data.drift import PARTS, SplitSample
from dlrm.train.metrics import ClickMetrics

_LEAST_CALIBRATION, _MOST_CALIBRATION = 0.8, 1.25
_SHOWN = 3


def metric_lines(metrics: ClickMetrics, split: str) -> list[str]:
    """Returns a line for each metric with a value that a useful model does not have."""
    lines = []
    if metrics.normalised_entropy > 1:
        lines.append(
            f"Normalised entropy {metrics.normalised_entropy:.4f} on the {split} split: predicting "
            "its click rate for every row would be better. The model was trained too little or "
            "too long, its `lr` is too high, or the rows of the split differ from the training "
            "rows: compare the log losses of the evaluations, and the splits with "
            "`recsys-recipes verify`"
        )
    if not _LEAST_CALIBRATION <= metrics.calibration <= _MOST_CALIBRATION and metrics.base_rate:
        lines.append(
            f"Calibration {metrics.calibration:.4f} on the {split} split: the mean prediction is "
            f"{metrics.calibration * metrics.base_rate:.1%}, the click rate "
            f"{metrics.base_rate:.1%}. The predictions may rank well, but they are not "
            "probabilities: train longer or shorter, or on rows with the click rate of the split"
        )
    return lines


def data_lines(
    train: SplitSample, evaluated: SplitSample, split: str, tables: Sequence[str]
) -> list[str]:
    """Returns a line for each harmful difference between training rows and tested rows.

    Args:
        train: sample of the training rows.
        evaluated: sample of the split on which the model is tested.
        split: name of that split.
        tables: names of the tables whose id 0 means missing, rare and unseen values; empty if
            id 0 is an ordinary id.
    """
    lines = []
    if (drift := train.drift()) is not None:
        low, high = (f"{train.clicks[at] / train.rows[at]:.1%} in part {at + 1}" for at in drift)
        lines.append(
            f"The click rate drifts along the training rows: of {PARTS} consecutive parts, it is "
            f"{low} and {high}. The last rows influence the model most: shuffle the rows with "
            "recsys-recipes prepare clicks --shuffle_seed 0, or train only on rows like those to "
            "predict"
        )
    if tables and (others := train.other_shares(evaluated)):
        shares = (
            f"{tables[i]} {train.zeros[i] / train.ids[i]:.1%} and "
            f"{evaluated.zeros[i] / evaluated.ids[i]:.1%}"
            for i in others[:_SHOWN]
        )
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        lines.append(
            "Id 0 (missing, rare and unseen values) has another share in training than on the "
            f"{split} split: {', '.join(shares)}{more}. What the model learned about it does not "
            "hold there: leave these features out, or prepare the dataset with another limit "
            "(recsys-recipes prepare clicks --frequency_limit)"
        )
    return lines
