# SPDX-License-Identifier: Apache-2.0
"""Measures training steps of a run: benchmark and profile."""

from recsys.train.measure.settings import MeasureConfig, step_observers, write_report

__all__ = ["MeasureConfig", "step_observers", "write_report"]
