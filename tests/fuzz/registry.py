# SPDX-License-Identifier: Apache-2.0
"""Names of the targets, without an import of what they test."""

import importlib

from tests.fuzz.target import Target

MODULES: dict[str, tuple[str, ...]] = {
    "streams": ("streams",),
    "logs": ("logs",),
    "growth": ("growing_logs", "growing_ratings"),
    "ratings": ("ratings",),
    "tables": ("tables",),
    "recommending": ("recommended_lines",),
    "datasets": ("click_datasets", "prepared_datasets", "sequence_datasets"),
    "texts": ("schemas", "presets", "json_requests", "histories", "model_configs"),
    "models": ("dlrm_checkpoints", "bert4rec_checkpoints", "deployed_versions", "deltas"),
}
"""Targets of each module."""

PACKAGES = ("preproc", "recsys", "dlrm", "bert4rec", "recsys_recipes")
"""Packages whose branches guide the fuzzer."""

NAMES = tuple(name for names in MODULES.values() for name in names)


def load(name: str) -> Target:
    """Imports a target."""
    module = next(module for module, names in MODULES.items() if name in names)
    targets = importlib.import_module(f"tests.fuzz.{module}").TARGETS
    return next(target for target in targets if target.name == name)
