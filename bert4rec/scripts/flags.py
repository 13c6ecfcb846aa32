# SPDX-License-Identifier: Apache-2.0
"""Flags of the BERT4Rec programs."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from bert4rec.auto import choice
from bert4rec.auto.choice import Choice
from bert4rec.config import Bert4RecConfig
from recsys import auto
from recsys import flags as settings_flags
from recsys.auto import AUTO
from recsys.errors import UserError
from recsys.presets import Preset, PresetFolder

SECTIONS = Bert4RecConfig.sections
_ALIASES = {
    "use_amp": "amp",
    "use_torch_compile": "torch_compile",
}
"""Flag of the scaling repository -> our flag with the same meaning."""

_THEIR_KEYS = {
    "model": {
        "hidden_size": "emb_dim",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "nhead",
        "intermediate_size": "ffn_dim",
        "max_position_embeddings": "max_len",
        "dropout_rate": "dropout",
        "attention_dropout_rate": "attention_dropout",
    },
    "training": {
        "batch_size": "train_batch_size",
        "learning_rate": "lr",
        "max_epochs": "num_epochs",
        "gradient_clip": "clip_norm",
        "warmup_ratio": "warmup_steps",
        "use_amp": "amp",
    },
}
"""Heading in the files of the scaling repository -> key -> setting.

Other keys are spelt like our settings.
"""

PRESETS = PresetFolder(
    Path(__file__).resolve().parents[1] / "configs", SECTIONS, "config", _THEIR_KEYS
)


_OF_DAYS = "fast"
"""Preset of days that grow, if the user names none."""


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines every flag, and aliases for flags of the scaling repository.

    Args:
        flag_values: receives the definitions.
        **defaults: defaults that replace those of the config, by setting.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults, omit=("split",))
    names = ", ".join(PRESETS.names())
    flags.DEFINE_string(
        "config",
        None,
        f"YAML file of settings, one of {names}, or {AUTO}, which chooses settings for the "
        "dataset; explicit flags override it",
        flag_values=flag_values,
        module_name="Config",
    )
    auto.define_flags(flag_values)
    for alias, name in _ALIASES.items():
        flags.DEFINE_alias(alias, name, flag_values=flag_values, module_name="Aliases")
    flags.DEFINE_string(
        "resume_checkpoint",
        None,
        "Checkpoint, or folder of a run, to continue from: short for --resume with its folder as "
        "--export_root",
        flag_values=flag_values,
        module_name="Aliases",
    )
    flags.DEFINE_bool(
        "distributed",
        None,
        "Refuse to run unless torchrun started the process. Without this flag, a run joins "
        "torchrun's processes too",
        flag_values=flag_values,
        module_name="Aliases",
    )


def describe(flag_values: flags.FlagValues) -> None:
    """Shows in the help which settings the preset chooses."""
    values, _ = settings_flags.values_from_flags(flag_values, SECTIONS)
    _drop_default_preset(flag_values["config"], values)
    if (name := flag_values["config"].value) is not None:
        file, more = (choice.BASE, choice.CHOSEN) if name == AUTO else (name, ())
        settings_flags.show_chosen(flag_values, {*PRESETS.read(file).values, *more})


def config_from_flags(flag_values: flags.FlagValues) -> Bert4RecConfig:
    """Builds the config from parsed flags and their YAML file; with auto, without its budget.

    Raises:
        UserError: a value is refused, or the file has a key that is not a setting.
    """
    return chosen_from_flags(flag_values)[1]


def chosen_from_flags(
    flag_values: flags.FlagValues,
) -> tuple[Choice | None, Bert4RecConfig, frozenset[str]]:
    """Builds the config from parsed flags, and returns what `--config auto` chose.

    Returns:
        (the choice, None without auto; the config; names of the settings that the user gave).

    Raises:
        UserError: see `config_from_flags`.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    _drop_default_preset(flag_values["config"], values)
    given, name = frozenset(explicit), flag_values["config"].value
    auto.budget_from_flags(flag_values, "config")
    if flag_values["distributed"].value is not None:
        _check_launcher(flag_values["distributed"].value)
    with PRESETS.fill(None if name == AUTO else name, values, explicit).located():
        if values["mode"] in ("ddp", "dmp"):
            if "parallelism" in explicit and values["parallelism"] != values["mode"]:
                raise UserError(
                    f"`mode` {values['mode']} contradicts `parallelism` {values['parallelism']}",
                    settings=("mode", "parallelism"),
                )
            values["parallelism"], values["mode"] = values["mode"], "train"
        if flag_values["resume_checkpoint"].value is not None:
            _continue_from(Path(flag_values["resume_checkpoint"].value), values, explicit)
        if name != AUTO:
            return None, Bert4RecConfig.from_dict(values, frozenset(explicit)), given
    chosen, settings = _auto(values, explicit)
    settings = settings_flags.of_use(settings, values, explicit, SECTIONS)
    preset = Preset(settings, dict.fromkeys(settings, f"`config` {AUTO}"))
    with preset.fill(values, explicit).located():
        return chosen, Bert4RecConfig.from_dict(values, frozenset(explicit)), given


def _drop_default_preset(preset: "flags.Flag[Any]", values: Mapping[str, Any]) -> None:
    """Drops auto, a command's default, from a run that takes its settings from a checkpoint.

    Days that grow are trained with one preset: auto would choose anew for each.

    Raises:
        UserError: the user asks for auto on such days.
    """
    if values["grow"] and preset.value == AUTO:
        if preset.present:
            raise UserError(
                f"`config` {AUTO} chooses for one dataset, not for the days of `grow`: name a "
                "preset",
                settings=("config", "grow"),
            )
        preset.value = _OF_DAYS
    trains = values["mode"] not in ("test", "recommend", "inference_benchmark")
    if not preset.present and (not trains or values["load_checkpoint_path"] is not None):
        preset.value = None


def refuse_unused(
    flag_values: flags.FlagValues, config: Bert4RecConfig, searched: Collection[str] = ()
) -> None:
    """Refuses flags that have no effect under a config; see `recsys.flags.refuse_unused`.

    Args:
        flag_values: parsed flags.
        config: settings of the run, from these flags.
        searched: settings whose values are chosen by trials.
    """
    later = set(searched)
    if config.run.load_checkpoint_path is not None:
        later |= {"adapter", "objective"}
    settings_flags.refuse_unused(flag_values, config.to_dict(), SECTIONS, later)


def settings_of_auto(flag_values: flags.FlagValues) -> list[dict[str, Any]]:
    """Returns the settings that `--config auto` chooses, as a list of one; [] without auto."""
    if flag_values["config"].value != AUTO:
        return []
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    return [_auto(values, explicit)[1]]


def _auto(values: dict[str, Any], explicit: set[str]) -> tuple[Choice, dict[str, Any]]:
    """Returns the choice of auto, and all settings that follow from it."""
    chosen = choice.choose_from(values, explicit)
    return chosen, PRESETS.read(choice.BASE).values | chosen.settings


def _check_launcher(distributed: bool) -> None:
    """Refuses a run whose processes are not those that the user announced.

    Raises:
        UserError: torchrun did not start the process, or started several that were not announced.
    """
    if distributed and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "`distributed` needs torchrun, which did not start this process: torchrun "
            "--nproc_per_node 2 -m bert4rec.scripts.main ...",
            setting="distributed",
        )
    if not distributed and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            f"--nodistributed contradicts torchrun's {os.environ['WORLD_SIZE']} processes, which a "
            "run joins: start it with python"
        )


def _continue_from(path: Path, values: dict[str, Any], explicit: set[str]) -> None:
    """Sets the settings that continue the run of a checkpoint.

    Args:
        path: the latest checkpoint of a run, or the run's folder.
        values: every setting, changed in place.
        explicit: names of those that the user gave; the changed ones are added.

    Raises:
        UserError: there is no such run, the checkpoint is not its latest, or `export_root` is
            another folder.
    """
    from recsys.train.checkpoint import MANIFEST_FILE
    from recsys.train.saving.run_folder import CheckpointFolder

    is_checkpoint = (path / MANIFEST_FILE).is_file()
    run = path.resolve().parent if is_checkpoint else path
    latest = CheckpointFolder(run).latest()
    if latest is None:
        raise UserError(
            f"`resume_checkpoint` {path}: no run is saved there; give the `export_root` of a run, "
            "or its latest checkpoint",
            settings=("resume_checkpoint", "export_root"),
        )
    if is_checkpoint and path.resolve() != latest.resolve():
        raise UserError(
            f"`resume_checkpoint` {path}: a run continues from its latest checkpoint, {latest}; to "
            f"begin another run with these weights, use `load_checkpoint_path` {path}",
            settings=("resume_checkpoint", "load_checkpoint_path"),
        )
    given = values["export_root"]
    if "export_root" in explicit and Path(given).resolve() != run.resolve():
        raise UserError(
            f"`resume_checkpoint` {path} continues in {run}, which contradicts `export_root` "
            f"{given}: drop one",
            settings=("resume_checkpoint", "export_root"),
        )
    values |= {"export_root": str(run), "resume": True}
    explicit.update(("export_root", "resume"))
