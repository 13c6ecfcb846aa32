# SPDX-License-Identifier: Apache-2.0
"""The inputs in the corpus, and a few that the seed makes, show no fault."""

import random

import pytest

from tests.fuzz.registry import NAMES, load
from tests.fuzz.target import CORPUS, Draws
from tests.fuzz.worker import runner, scratch

_DRAWN = 30
"""Inputs that are drawn for each target besides; `python -m tests.fuzz` runs many more."""


@pytest.mark.parametrize("name", NAMES)
def test_no_input_shows_a_fault(name):
    folder, rng = CORPUS / name, random.Random(name)
    inputs = {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}
    inputs |= {f"drawn {i}": rng.randbytes(4 << rng.randrange(9)) for i in range(_DRAWN)}
    check = load(name).check
    with scratch() as root:
        run = runner(check, root)
        for label, data in inputs.items():
            try:
                run(data)
            except Exception as error:
                error.add_note(f"input {label} of {name}: {data.hex()}")
                raise


def test_the_corpus_has_only_inputs_of_targets():
    assert {path.name for path in CORPUS.iterdir()} <= {*NAMES}


def test_an_input_makes_the_choices_that_its_bytes_spell():
    draws = Draws(bytes([1, 2, 0x34, 0x12, 0, 7]))
    assert draws.pick("abc") == "b"
    assert draws.bytes(1) == b"\2"
    assert draws.below(1 << 16) == 0x1234
    assert [*draws.some(3)] == []
    assert draws.below(5) == 2
    assert draws.below(1000) == 0
