# SPDX-License-Identifier: Apache-2.0
"""Presets of every program: each file loads, and one that is wrong is refused by its line."""

import tomllib

import pytest
from absl import flags

from bert4rec.scripts import flags as bert4rec
from bert4rec.scripts import main as bert4rec_main
from dlrm.scripts import flags as dlrm
from dlrm.scripts import main as dlrm_main
from preproc.clicks import __main__ as clicks
from preproc.clicks.job import PRESETS as CRITEO
from preproc.clicks.job import semantics_of
from preproc.clicks.rules import ClicksSemantics
from recsys.presets import PresetFolder
from recsys.settings import declared
from tests import harness
from tests.harness import assert_tells, refusal

FOLDERS = {"dlrm": dlrm.PRESETS, "bert4rec": bert4rec.PRESETS, "preproc": CRITEO}


def dlrm_config(*arguments):
    values = flags.FlagValues()
    dlrm.define_flags(values)
    assert values(["main", "--dataset=d", *arguments])[1:] == []
    return dlrm.config_from_flags(values)


@pytest.mark.parametrize("package", FOLDERS)
def test_every_preset_is_read_and_shipped(package):
    folder = FOLDERS[package]
    project = tomllib.loads((harness.REPOSITORY / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"][package]
    shipped = {
        path for pattern in patterns for path in (harness.REPOSITORY / package).glob(pattern)
    }
    assert len(folder.names()) > 3
    for name in folder.names():
        preset = folder.read(name)
        assert preset.values.keys() == preset.lines.keys()
        assert folder.folder / f"{name}.yaml" in shipped


@pytest.mark.parametrize("name", dlrm.PRESETS.names())
def test_a_preset_of_dlrm_gives_its_values_unless_a_flag_does(name):
    preset = dlrm.PRESETS.read(name).values
    config = dlrm_config(f"--preset={name}")
    sizes = {n: getattr(config.model, n) for n in ("bottom_mlp_sizes", "top_mlp_sizes")}
    assert preset.items() <= (config.to_dict() | sizes).items()
    assert set(preset) <= config.explicit
    assert dlrm_config("--lr=0.5", f"--preset={name}").optimizer.lr == 0.5


def test_presets_that_say_they_are_the_defaults():
    assert dlrm_config("--preset=terabyte_15").to_dict() == dlrm_config("--drop_last").to_dict()
    assert semantics_of("dlrm") == ClicksSemantics()


def test_a_file_of_ones_own_is_a_preset_too(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("lr: 1e-3\nbottom_mlp_sizes: [32, 16]\nembedding_dim: 16\n")
    config = dlrm_config(f"--preset={file}")
    assert (config.optimizer.lr, config.model.bottom_mlp_sizes) == (0.001, (32, 16))


@pytest.mark.parametrize(
    ("text", "line", "facts"),
    [
        ("lr: 1\nlearning: 2\n", 2, "'learning' docs/flags.md"),
        ("batch_sizes: 2\n", 1, "'batch_sizes' batch_size"),
        ("lr: 1\nlr: 2\n", 2, "lr"),
        (f"lr: 1{'0' * 400}\n", 1, f"lr 1{'0' * 400}"),
        ("lr: fast\n", 1, "lr 'fast'"),
        ("batch_size: 1.5\n", 1, "batch_size 1.5"),
        ("amp: 1\n", 1, "amp true false 1"),
        ("optimizer: sgdd\n", 1, "optimizer sgd 'sgdd'"),
        ("top_mlp_sizes: 1\n", 1, "top_mlp_sizes 1"),
        ("- lr\n", None, "setting: value"),
        ("lr: [\n", 2, "YAML"),
        ("explicit: [lr]\n", 1, "'explicit'"),
        ("lr: !new 1\n", 1, "YAML '!new'"),
        ("seed: 1\nlr: 2026-02-30\n", 2, "YAML '2026-02-30'"),
        (f"lr: 1{'0' * 5000}\n", 1, "YAML"),
        (f"seed: 1\nlr: 0x1{'0' * 5000}\n", 2, "YAML"),
        ("lr:" + "\n [" * 1000, None, "YAML"),
        ("seed: 1\nlr: \udcff\n", 2, "YAML UTF-8"),
        ("seed: 1\nlr: \a\n", 2, "YAML '\\x07'"),
        ("? [lr]\n: 1\n", 1, "YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(tmp_path, text, line, facts):
    file = tmp_path / "mine.yaml"
    file.write_text(text, errors="surrogateescape")
    with refusal(f"{file}:{line}" if line else file, *facts.split()):
        dlrm_config(f"--preset={file}")


def run(program, file, *flags):
    """Returns the exit status of a program with a preset."""
    if program is clicks:
        return clicks.main(["criteo", "--input=in", "--output=out", f"--preset={file}", *flags])
    flag = "config" if program is bert4rec_main else "preset"
    return harness.call(program, f"--{flag}={file}", *flags)


DATA = ["--dataset=d"]


@pytest.mark.parametrize(
    ("program", "text", "flags", "line", "facts"),
    [
        (dlrm_main, "amp: true\nlr: -1\n", DATA, 2, "lr -1.0"),
        (dlrm_main, "lr: 1\nresume: true\n", DATA, 2, "resume --save_checkpoint_path"),
        (bert4rec_main, "emb_dim: 10\nnhead: 3\n", [], 1, "emb_dim 10 nhead 3"),
        (bert4rec_main, "nhead: 3\n", ["--emb_dim=10"], 1, "--emb_dim 10 nhead 3"),
        (bert4rec_main, "parallelism: ddp\n", ["--mode=dmp"], 1, "--mode dmp parallelism ddp"),
        (clicks, "shuffle_seed: -1\n", [], 1, "shuffle_seed 0 -1"),
    ],
)
def test_a_refused_value_is_named_with_its_line(
    tmp_path, capsys, program, text, flags, line, facts
):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert run(program, file, *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}:{line}: ")
    assert_tells(error, *facts.split())


def test_a_flag_comes_before_a_wrong_value(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("lr: -1\n")
    assert dlrm_config(f"--preset={file}", "--lr=2").optimizer.lr == 2.0
    with refusal(0, settings=("batch_size",), line=None):
        dlrm_config(f"--preset={file}", "--lr=2", "--batch_size=0")
    file.write_text("frequency_limit: -1\n")
    assert semantics_of(str(file), {"frequency_limit": 3}).frequency_limit == 3


@pytest.mark.parametrize("package", FOLDERS)
def test_every_setting_may_stand_in_a_file_and_has_a_type(tmp_path, package):
    sections = FOLDERS[package].sections
    file = tmp_path / "mine.yaml"
    for field in (field for section in sections for field in declared(section)):
        file.write_text(f"{field.name}: {{}}\n")
        with refusal(f"{file}:1: {field.name}", "{}"):
            FOLDERS[package].read(str(file))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("split_fractions", ("[1, 2]", "[0.5, x, 0.5]", "0.5")),
        ("split_rows", ("[1, 2]", "[1.5, 1, 1]", "4")),
    ],
)
def test_splits_are_three_numbers(tmp_path, name, texts):
    file = tmp_path / "mine.yaml"
    for text in texts:
        file.write_text(f"{name}: {text}\n")
        with refusal(f"{file}:1: {name}", 3):
            semantics_of(str(file))
    file.write_text("split_rows: [20, 5, -1]\n")
    assert semantics_of(str(file)).split_rows == (20, 5, -1)


def test_a_name_that_is_none_lists_those_that_are():
    with refusal("`preset` kagle", "bars_x1, bars_x4, criteo_sample"):
        dlrm_config("--preset=kagle")


def test_a_broken_file_does_not_break_the_others(tmp_path):
    (tmp_path / "broken.yaml").write_text("lr: [\n")
    (tmp_path / "good.yaml").write_text("lr: 2\n")
    folder = PresetFolder(tmp_path, dlrm.SECTIONS)
    assert folder.names() == ["broken", "good"]
    assert folder.read("good").values == {"lr": 2.0}
    with refusal(tmp_path / "broken.yaml"):
        folder.read("broken")


def test_yaml_is_imported_only_for_a_preset():
    program = (
        "import sys; from preproc.clicks.job import PRESETS; PRESETS.names(); "
        "print('yaml' in sys.modules); PRESETS.read('kaggle'); print('yaml' in sys.modules)"
    )
    assert harness.python("-c", program).stdout.split() == ["False", "True"]
