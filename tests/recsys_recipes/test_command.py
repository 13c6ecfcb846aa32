# SPDX-License-Identifier: Apache-2.0
"""The command `recsys-recipes`, as a user types it: words, help, what it starts."""

import json
import logging
import re
import sys

import pytest

import recsys.program
from recsys.flags import BY_PRESET
from recsys_recipes import __version__
from recsys_recipes.command import main
from recsys_recipes.commands import COMMANDS
from recsys_recipes.serving.nvidia_options import translate
from tests import harness
from tests.recsys.train.tiny import TINY_DLRM

# Programs that this process has imported before it runs them, as `here` does.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")

SCREEN = 80, 24
PROGRAMS = [
    pytest.param((word, name) if name else (word,), program, id=f"{word} {name}".strip())
    for word, command in COMMANDS.items()
    for name, program in command.programs.items()
]


ABSL = ("dlrm.scripts.main", "bert4rec.scripts.main", "recsys_recipes.serving.deploy")
"""Programs whose flags are absl's own for the whole process: they need one of their own."""

REFUSED_WITHOUT_TORCH = """
import sys
import recsys.program
from recsys_recipes.command import main

for line in sys.argv[1:]:
    recsys.program._callers.clear()
    sys.argv = ["recsys-recipes", *line.split()]
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code
    print(f"{line}: {status} {'torch' in sys.modules}")
"""


def recipes(*arguments, **options):
    """Runs the command in a process of its own."""
    return harness.forked("-m", "recsys_recipes", *arguments, **options)


@pytest.fixture
def here(monkeypatch, capsys):
    """Runs the command in this process; returns its exit status, output and errors."""
    root = logging.getLogger()

    def run(*arguments):
        monkeypatch.setattr(recsys.program, "_callers", [])
        # Programs show their log; a handler left behind would write into other tests' errors.
        monkeypatch.setattr(root, "handlers", root.handlers[:])
        monkeypatch.setattr(root, "level", root.level)
        monkeypatch.setattr("sys.argv", ["recsys-recipes", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


def first_screen(text):
    """What an 80 x 24 terminal shows of a text before it scrolls, lines wrapped."""
    width, height = SCREEN
    rows = [
        line[start : start + width]
        for line in text.splitlines()
        for start in range(0, max(len(line), 1), width)
    ]
    return "\n".join(rows[:height])


def test_the_overview_fits_a_screen_lists_every_command_and_a_way_to_a_served_model(here):
    _, text, _ = here("--help")
    assert first_screen(text) == text.rstrip("\n")
    for word, command in COMMANDS.items():
        assert re.search(rf"^  {word} +{re.escape(command.summary)}$", text, re.MULTILINE)
    for word in re.findall(r"^  recsys-recipes (\w+)", text, re.MULTILINE):
        assert word in COMMANDS
    assert here() == (0, text, "")


def test_the_command_itself_starts_without_heavy_imports():
    done = harness.python("-X", "importtime", "-m", "recsys_recipes", "--version")
    assert done.stdout == f"recsys-recipes {__version__}\n"
    names = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "recsys_recipes.command" in names
    assert not names & {"torch", "numpy", "pyarrow", "yaml"}


def test_a_typo_is_refused_before_torch_is_imported():
    """By every program, in one process: torch takes six seconds of a processor."""
    lines = [" ".join((*param.values[0], "--fodler=x")) for param in PROGRAMS]
    lines += [
        "train dlrm --lr=-1",
        "train bert4rec --lr=-1",
        "train dlrm --max_len=50",
        "ask --url=x --p99_ms=1",
    ]
    done = harness.python("-c", REFUSED_WITHOUT_TORCH, *lines)
    assert done.stdout.splitlines() == [f"{line}: 2 False" for line in lines]
    assert done.stderr.count("error: ") == len(lines)


@pytest.mark.parametrize(("words", "program"), PROGRAMS)
def test_the_first_screen_of_help_holds_the_most_used_flags(words, program, here):
    with_absl = program.module in ABSL
    text = recipes(*words, "--help").stdout if with_absl else here(*words, "--help")[1]
    screen = first_screen(text)
    listed = re.findall(r"^  (?:-\w+,|--\[no\]\w+,)?--(?:\[no\])?(\w+)", text, re.MULTILINE)
    names = set(listed) - {"help"}
    most_used = {program.flag(setting) for setting in program.most_used}
    assert most_used <= names
    assert not names & set(program.names).difference(program.names.values())
    assert set(program.names.values()) <= set(defaults_shown(text))
    shown = set(re.findall(r"--(?:\[no\])?(\w+)", screen)) & names
    assert (most_used or names) <= shown
    assert len(shown) >= min(10, len(names))
    assert words[0] != "test" or "--mode=test" in screen  # the mode that it has
    assert screen.startswith(f"{program.summary}.\n\nUsage: recsys-recipes {' '.join(words)} ")


def defaults_shown(text):
    """Returns flag -> default, of the flags of a help that have one."""
    sections = text[text.index("\nHelp:") :]
    entries = re.split(r"\n  (?=-)", sections)
    found = {}
    for entry in entries[1:]:
        name = re.search(r"--(?:\[no\])?(\w+):", entry)[1]
        default = re.search(r"\(default: (.*?)\)$", entry, re.MULTILINE)
        found[name] = default and default[1].strip("'")
    return found


@pytest.mark.parametrize(
    ("words", "chosen", "kept"),
    [
        (("train", "dlrm"), ["lr", "batch_size", "patience"], {"preset": "auto", "decay_power": 2}),
        (("train", "dlrm", "--preset=small"), ["lr"], {"eval_split": "test"}),
        (("train", "dlrm", "--embedding_dim=4"), [], {"lr": 28.0, "batch_size": 32768}),
        (("train", "bert4rec"), ["lr", "epochs", "nhead"], {"preset": "auto", "batch_size": 128}),
        (("train", "bert4rec", "--preset=paper"), ["lr"], {"patience": None}),
        (("test", "bert4rec"), [], {"lr": 0.001, "preset": None}),
    ],
)
def test_the_help_shows_no_default_in_place_of_which_the_preset_chooses(words, chosen, kept):
    text = recipes(*words, "--help").stdout
    shown = defaults_shown(text)
    for flag in chosen:
        assert shown[flag] == BY_PRESET
        assert not re.search(rf"^  --{flag}=\d", text, re.MULTILINE)
    assert {flag: shown[flag] for flag in kept} == {
        flag: None if default is None else str(default) for flag, default in kept.items()
    }


@pytest.mark.parametrize("program", ["dlrm.scripts.main", "bert4rec.scripts.main"])
def test_the_help_of_a_models_own_program_shows_its_defaults(program):
    assert BY_PRESET not in harness.forked("-m", program, "--help").stdout


def test_messages_name_the_command_of_a_program(tmp_path):
    done = recipes("train", "bert4rec", f"--dataset={tmp_path / 'none'}", status=2)
    harness.assert_tells(done.stderr, tmp_path / "none", "`recsys-recipes prepare ratings`")


@pytest.mark.parametrize("word", [w for w, c in COMMANDS.items() if "" not in c.programs])
def test_a_command_of_several_programs_lists_them(word, here):
    _, text, _ = here(word, "--help")
    assert first_screen(text) == text.rstrip("\n")
    for name, program in COMMANDS[word].programs.items():
        assert re.search(rf"^  {name} +{re.escape(program.summary)}", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("trian", ["'trian'", "demo, generate, prepare", "train?", "recsys-recipes --help"]),
        ("prepare raitngs", ["'raitngs'", "ratings, amazon", "ratings?"]),
        ("train", ["dlrm, logistic, blend_clicks, bert4rec"]),
        ("train --dataset=x", ["dlrm, logistic, blend_clicks, bert4rec"]),
        ("prepare netflix", ["'netflix'", "criteo, clicks, ratings"]),
        ("predict logistic --dataset=x --checkpoint=y", ["predict logistic", "--predictions"]),
        ("predict dlrm --dataset=x --checkpoint=y", ["predict dlrm", "--predictions"]),
        ("demo --rows=0", ["--rows", 1, 0]),
        ("prepare criteo --inputt=3", ["'inputt'", "input ?"]),
        ("train auto --dataset=x --output=y --budget=10", ["--budget", "10m", "'10'"]),
        ("train auto --dataset=x --output=y --budget 10 m", ["'m'", "--budget '10 m'"]),
        ("train item_knn --dataset=my data", ["'data'", "--dataset 'my data'"]),
        ("train item_knn data --dataset=my", ["'data'"]),
        ("verify", ["recsys-recipes verify DIR"]),
        ("test dlrm --dataset=x", ["recsys-recipes test dlrm", "--checkpoint"]),
        ("test bert4rec", ["recsys-recipes test bert4rec", "--checkpoint"]),
        ("test --dataset=x", ["recsys-recipes test", "--checkpoint"]),
        ("recommend", ["recsys-recipes recommend", "--checkpoint"]),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_choices(words, facts, here):
    code, out, err = here(*words.split())
    assert (code, out) == (2, "")
    harness.assert_tells(err, *facts)


@pytest.mark.parametrize(("words", "program"), PROGRAMS)
def test_a_setting_has_one_name_in_all_commands(words, program, here):
    for setting, flag in program.names.items():
        if setting not in program.names.values():
            code, out, err = here(*words, f"--{setting}=x")
            assert (code, out) == (2, "")
            harness.assert_tells(err, f"--{flag}")


def test_a_refusal_names_flags_as_the_command_has_them(tmp_path):
    for words, facts in (
        (["train", "bert4rec", f"--dataset={tmp_path}"], ["--dataset", tmp_path]),
        (["train", "bert4rec", "--batch_size=0"], ["--batch_size"]),
        (["train", "bert4rec", "--preset=nope"], ["--preset", "nope"]),
        (["train", "item_knn", "--datset=x"], ["dataset, dataset_name"]),
        (["train", "dlrm", "--resume", f"--dataset={tmp_path}"], ["--resume", "--output"]),
        (["test", f"--checkpoint={tmp_path}"], [tmp_path]),
    ):
        err = recipes(*words, status=2).stderr
        harness.assert_tells(err, *facts)
        assert not re.search("dataset_path|export_root|save_checkpoint_path|--config", err)


@pytest.mark.parametrize("words", [["train", "dlrm", "--split=test"], ["serve", "--epochs=3"]])
def test_a_flag_of_another_program_is_unknown(words):
    done = recipes(*words, status=2)
    (name,) = re.findall(r"--(\w+)=", words[-1])
    assert f"Unknown command line flag '{name}'" in done.stderr
    assert "BERT4Rec" not in done.stderr
    assert "num_epochs" not in done.stderr


@pytest.mark.parametrize(
    ("words", "flag", "facts"),
    [
        ("train dlrm", "max_len", ["bert4rec", "max_steps"]),
        ("train markov", "emb_dim", ["bert4rec, gru"]),
        ("train auto", "neighbours", ["item_knn"]),
        ("tune bert4rec", "optimizer", ["dlrm"]),
        ("test ease", "batch_size", ["dlrm, bert4rec, gru"]),
    ],
)
def test_a_flag_of_other_models_names_them_and_flags_like_it(words, flag, facts, here):
    code, out, err = here(*words.split(), f"--{flag}=5")
    assert (code, out) == (2, "")
    harness.assert_tells(err, f"'{flag}'", *facts)


def test_the_command_trains_and_tests_a_model(tmp_path):
    log, run = f"--log_path={tmp_path / 'log'}", tmp_path / "run"
    recipes("train", "dlrm", *TINY_DLRM, log, "--max_steps=2", f"--output={run}")
    recipes("test", "dlrm", *TINY_DLRM, log, f"--checkpoint={run}")
    recipes("test", *TINY_DLRM, log, f"--checkpoint={run}")
    assert 0 < harness.read_log(tmp_path / "log")[-1]["data"]["auc"] < 1


def test_the_log_of_a_training_is_in_its_folder_and_others_write_none(tmp_path):
    def files():
        return {path.name for path in tmp_path.iterdir()}

    recipes("train", "dlrm", *TINY_DLRM, "--max_steps=2", "--output=run", folder=tmp_path)
    assert harness.read_log(tmp_path / "run" / "log.json")[-1]["data"]["best_epoch"] > 0
    again = ("--max_steps=4", "--output=run", "--resume")
    recipes("train", "dlrm", *TINY_DLRM, *again, folder=tmp_path)
    (settings,) = (
        record["data"]
        for record in harness.read_log(tmp_path / "run" / "log.json")
        if record["step"] == "PARAMETER" and record["data"]["max_steps"] == 4
    )
    assert settings["log_path"] == str(tmp_path / "run" / "log.json")
    recipes("test", *TINY_DLRM, "--checkpoint=run", folder=tmp_path)
    recipes("train", "dlrm", *TINY_DLRM, "--max_steps=2", folder=tmp_path)
    assert files() == {"run"}
    for word, flag in (("train", "--max_steps=2"), ("test", "--checkpoint=run")):
        page = f"--report={word}.html"
        recipes(word, "dlrm", *TINY_DLRM, flag, page, folder=tmp_path)
        assert "auc" in (tmp_path / f"{word}.html").read_text()
    assert files() == {"run", "train.html", "test.html"}
    harness.forked("-m", "dlrm.scripts.main", *TINY_DLRM, "--max_steps=2", folder=tmp_path)
    assert "log.json" in files()


@pytest.mark.parametrize("model", ["markov", "bert4rec"])
def test_models_of_ratings_log_in_their_folder_too(model, dataset, tmp_path):
    steps = ["--max_steps=2", "--preset=fast", "--base_device=cpu"] if model == "bert4rec" else []
    common = (f"--dataset={dataset}", "--baselines=", "--num_threads=1")
    recipes("train", model, *common, *steps, "--output=run", folder=tmp_path)
    logged = harness.last_figures(tmp_path / "run" / "log.json")
    assert "test_full_hr@10" in logged
    recipes("test", *common, "--checkpoint=run", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert harness.last_figures(tmp_path / "run" / "log.json") == logged


def test_the_doctor_tells_what_is_there_and_what_adds_the_rest(here):
    code, out, _ = here("doctor", "--json")
    parts = {each["name"]: each for each in json.loads(out)}
    assert code == int(any(part["state"] == "broken" for part in parts.values()))
    assert parts["Python"]["detail"].startswith(sys.version.partition(" ")[0])
    assert {parts[name]["state"] for name in ("torch", "recsys-recipes")} == {"ok"}
    assert parts["CPU kernels"]["state"] in ("ok", "slow")
    _, text, _ = here("doctor")
    for part in parts.values():
        assert part["state"] == "ok" or part["add"] or part["name"] == "GPU"
        assert f"{part['state']:7} {part['name']}" in text
        assert part["add"] in text


def test_the_doctor_fails_where_the_kernels_cannot_run():
    done = harness.python("-m", "recsys_recipes", "doctor", RECSYS_CPU_KERNELS="sse9", status=None)
    if re.search("^slow +CPU kernels", done.stdout, re.MULTILINE):  # they are not built
        assert done.returncode == 0
    else:
        assert done.returncode == 1
        assert "broken  CPU kernels" in done.stdout
        assert "-> unset RECSYS_CPU_KERNELS" in done.stdout


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--ts-trace", "--backend=pytorch --format=torchscript --target=container"),
        (
            "--onnx --triton-model-name x",
            "--backend=onnx --format=onnx --target=container --name=x",
        ),
        ("--triton-max-batch-size=64", "--max_batch_size=64"),
        ("--max-batch-size 64", "--max_batch_size 64"),
        ("--triton-dyn-batching-delay 1.5", "--max_queue_delay_us=1500"),
        ("--triton-engine-count 2 --deploy_cpu", "--instances=2 --device=cpu"),
        ("--save-dir /m -- --embedding_dim 128 --top_mlp_sizes 4", "--repository=/m"),
        ("--checkpoint=/a-b/c --quantize int8", "--checkpoint=/a-b/c --quantize int8"),
    ],
)
def test_options_of_nvidias_deployer_are_turned_into_ours(given, ours):
    assert translate(given.split()) == ours.split()


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ("--dump_perf_data x", "--dump_perf_data"),
        ("--triton-model-name", "--triton-model-name"),
        ("--triton-dyn-batching-delay soon", "'soon'"),
    ],
)
def test_an_option_of_theirs_without_counterpart_is_refused(given, fact):
    with harness.refusal(fact):
        translate(given.split())


TRAIN, LOADED = ("train", "dlrm", "--preset=criteo_sample"), "--checkpoint"


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ((*TRAIN, "--dataset={tmp}/none"), "--dataset"),
        ((*TRAIN, "--dataset={tmp}", f"{LOADED}={{tmp}}/none"), LOADED),
        (("predict", "dlrm", "--dataset={tmp}/no", "--predictions=x", f"{LOADED}=."), "--dataset"),
        (("train", "bert4rec", "--dataset={tmp}"), "--dataset"),
        (("deploy", "--checkpoint={tmp}/none", "--repository={tmp}/models"), "--checkpoint"),
        (("recommend", "--dataset={tmp}", f"{LOADED}={{tmp}}/none"), LOADED),
        (("recommend", "bert4rec", "--dataset={tmp}", f"{LOADED}=."), "--dataset"),
        (
            ("tune", "dlrm", "--eval_split=validation", "--dataset={tmp}/none", "--study={tmp}/s",
             "--search=lr=1..2"),
            "--dataset",
        ),
    ],
)  # fmt: skip
def test_a_wrong_path_is_refused_before_torch_is_imported(tmp_path, words, setting):
    words = [word.format(tmp=tmp_path) for word in words]
    done = harness.python("-X", "importtime", "-m", "recsys_recipes", *words, status=2)
    imported = re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "recsys.settings" in imported
    assert "torch" not in imported
    assert f"error: {setting}" in done.stderr
    assert str(tmp_path) in done.stderr
