# SPDX-License-Identifier: Apache-2.0
"""Tells what is wrong with a model and its data, after a test."""

from collections.abc import Sequence

from dlrm.data.drift import PARTS, SplitSample
from dlrm.train.metrics import ClickMetrics

_LEAST_CALIBRATION, _MOST_CALIBRATION = 0.8, 1.25
_SHOWN = 3


def metric_lines(metrics: ClickMetrics, split: str) -> list[str]:
    """Returns a line for each metric that no model of use has."""
    lines = []
    if metrics.normalised_entropy > 1:
        lines.append(
            f"Normalised entropy {metrics.normalised_entropy:.4f} on the {split} split: its click "
            "rate, predicted for every row, would be better. The model was trained too little or "
            "too long, its `lr` is too high, or the rows of the split are unlike those of "
            "training: compare the log losses of the evaluations, and the splits with "
            "`recsys-recipes verify`"
        )
    if not _LEAST_CALIBRATION <= metrics.calibration <= _MOST_CALIBRATION and metrics.base_rate:
        lines.append(
            f"Calibration {metrics.calibration:.4f} on the {split} split: the mean prediction is "
            f"{metrics.calibration * metrics.base_rate:.1%}, the click rate "
            f"{metrics.base_rate:.1%}. The predictions may be in a good order, but are no "
            "probabilities: train longer or less long, or on rows whose click rate is that of the "
            "split"
        )
    return lines


def data_lines(
    train: SplitSample, evaluated: SplitSample, split: str, tables: Sequence[str]
) -> list[str]:
    """Returns a line for each way in which rows differ that a model suffers from.

    Args:
        train: sample of the training rows.
        evaluated: sample of the split that the model is tested on.
        split: its name.
        tables: names of the tables whose id 0 stands for missing, rare and unseen values; none
            if it is an id like any other.
    """
    lines = []
    if (drift := train.drift()) is not None:
        low, high = (f"{train.clicks[at] / train.rows[at]:.1%} in part {at + 1}" for at in drift)
        lines.append(
            f"The click rate drifts along the training rows: of {PARTS} parts in their order it is "
            f"{low} and {high}. The rows that are trained on last count most: shuffle them with "
            "recsys-recipes prepare clicks --shuffle_seed 0, or train on those alone that are like "
            "the ones to predict"
        )
    if tables and (others := train.other_shares(evaluated)):
        shares = (
            f"{tables[i]} {train.zeros[i] / train.ids[i]:.1%} and "
            f"{evaluated.zeros[i] / evaluated.ids[i]:.1%}"
            for i in others[:_SHOWN]
        )
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        lines.append(
            "Id 0, of missing, rare and unseen values, has another share in training than on the "
            f"{split} split: {', '.join(shares)}{more}. What the model learned about it does not "
            "hold there: leave these features out, or prepare the dataset with another limit, "
            "recsys-recipes prepare clicks --frequency_limit"
        )
    return lines
