# SPDX-License-Identifier: Apache-2.0
"""A flag that has no effect with the others is refused, before anything is read or written."""

import contextlib
import functools
import typing
from collections.abc import Callable, Iterator

import pytest

from bert4rec.scripts import main as bert4rec_main
from bert4rec.scripts.flags import SECTIONS as BERT4REC
from dlrm.scripts import main as dlrm_main
from dlrm.scripts import plan_placement, train_torchrec
from dlrm.scripts.flags import SECTIONS as DLRM
from preproc import movielens
from preproc.clicks import __main__ as clicks
from preproc.clicks.job import SECTIONS as CLICKS
from preproc.ratings.job import SECTIONS as RATINGS
from recsys.settings import Not, Sections, declared, joined, without_none
from recsys_recipes import fitted
from recsys_recipes.logistic.config import OF_STEPS
from recsys_recipes.serving import ask
from tests import harness


def of_main(program: typing.Any, *arguments: str) -> int:
    """Runs a program that takes the words of its command line."""
    return program.main(["program", *arguments])


def of_fitted(name: str, *arguments: str) -> int:
    """Runs the program of a fitted model."""
    return fitted.main(["program", name, *arguments])


PREPARE = ("--input=log", "--output=made")
PROGRAMS: dict[str, tuple[Callable[..., int], Sections, tuple[str, ...]]] = {
    "dlrm": (functools.partial(harness.call, dlrm_main), DLRM, ("--dataset=made",)),
    "torchrec": (functools.partial(harness.call, train_torchrec), train_torchrec.SECTIONS, ()),
    "bert4rec": (functools.partial(harness.call, bert4rec_main), BERT4REC, ()),
    **{
        name: (
            functools.partial(of_fitted, name),
            fitted.config_of(name).sections,
            ("--dataset=made",) if name in fitted.OF_CLICKS else (),
        )
        for name in fitted.NAMES
    },
    "clicks": (functools.partial(of_main, clicks), CLICKS, PREPARE),
    "plan": (functools.partial(harness.call, plan_placement), plan_placement.SECTIONS, ()),
    "ratings": (functools.partial(of_main, movielens), RATINGS, PREPARE),
    "ask": (functools.partial(of_main, ask), ask.SECTIONS, ("--url=127.0.0.1:1",)),
}
"""Each program, its sections, and the flags that it needs."""

NEEDED = {
    "canary": {"ask": ("--canary_version=2", "--request=x")},
    "resume": {"dlrm": ("--save_checkpoint_path=run",), "bert4rec": ("--export_root=run",)},
    "save_freq": {"dlrm": ("--save_checkpoint_path=run",), "bert4rec": ("--export_root=run",)},
}
"""What a flag needs in any case."""

VALUES = {
    "executor_memory": "4g",
    "master": "local[2]",
    "spark_conf": "spark.ui.enabled=false",
    "split_days": "1,1,1",
    "split_fractions": "0.5,0.25,0.25",
    "split_rows": "1,1,1",
    "weights": "0.5",
}
"""Values that the types of flags do not tell."""


def other_value(name: str, hint: typing.Any, default: typing.Any) -> str:
    """Returns a value of a flag that is not its default."""
    kind = without_none(hint)
    if name in VALUES:
        return VALUES[name]
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if choice != default)
    if kind is bool:
        return "true"
    if kind is float:
        return str((default or 1) / 2)
    if kind is int or typing.get_args(kind)[:1] == (int,):
        return str(default + 1) if isinstance(default, int) else "7"
    return joined(default[:1]) if isinstance(default, tuple) and default else "file.csv"


def cases() -> Iterator[typing.Any]:
    """Yields program, flag, another under which it does nothing, and the command line of both."""
    for program, (_, sections, needed) in PROGRAMS.items():
        hints = {n: h for each in sections for n, h in typing.get_type_hints(each).items()}
        fields = {field.name: field for section in sections for field in declared(section)}
        if program in fitted.OF_CLICKS:
            fields = {n: field for n, field in fields.items() if n not in OF_STEPS}
        others = {name: other_value(name, hints[name], f.default) for name, f in fields.items()}
        for name, field in fields.items():
            words = [*NEEDED.get(name, {}).get(program, ()), f"--{name}={others[name]}"]
            for other, wanted in field.metadata["used_with"].items():
                if isinstance(wanted, Not):
                    wrong, right = wanted.value, others[other]
                elif None in wanted:
                    wrong, right = others[other], None
                else:
                    choices = typing.get_args(hints[other])
                    wrong = next(
                        (c for c in choices if c not in (*wanted, "predict")), fields[other].default
                    )
                    right = wanted[-1]
                line = [*words, *([] if wrong is None else [f"--{other}={wrong}"])]
                yield pytest.param(
                    program, name, other, [*line, *needed], id=f"{program} {name} {other}"
                )
                words += [] if right is None else [f"--{other}={right}"]


@pytest.mark.parametrize(("program", "name", "other", "line"), list(cases()))
def test_a_flag_that_does_nothing_is_refused(program, name, other, line, capsys, tmp_path):
    with contextlib.chdir(tmp_path):
        assert PROGRAMS[program][0](*line) == 2
    harness.assert_tells(capsys.readouterr().err, f"--{name}", f"--{other}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("--preset={folder}/own.yaml", "--mode=test"),
        ("--loss_scale=1024", "--baselines=", "--mode=inference_benchmark"),
        ("--numerical_bins=8", "--load_checkpoint_path={folder}", "--mode=test"),
        ("--amp", "--loss_scale=512", "--decay_steps=9", "--decay_power=3"),
    ],
)
def test_what_a_preset_gives_or_is_the_default_or_is_found_later_is_taken(words, capsys, tmp_path):
    (tmp_path / "own.yaml").write_text("max_steps: 9\n")
    words = [word.format(folder=tmp_path) for word in words]
    assert harness.call(dlrm_main, "--dataset=absent", *words) == 2
    harness.assert_tells(capsys.readouterr().err, "--dataset", "absent")
