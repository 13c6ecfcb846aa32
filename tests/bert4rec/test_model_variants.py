# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is loaded whole or refused by name, whatever model the flags ask for."""

import pytest

from tests.bert4rec.conftest import make_program

PLAIN = (
    *("--num_layers=1", "--norm=post"),
    *("--head=tied", "--nohead_transform"),
)
RICH = (
    *("--num_layers=2", "--norm=pre"),
    *("--head=untied", "--head_transform"),
)
MODELS = {"plain": PLAIN, "rich": RICH}
QUICK = "--num_eval_negatives=5"


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A checkpoint of a plain and of a rich model."""
    folder = tmp_path_factory.mktemp("variants")
    program = make_program(folder)
    for name, flags in MODELS.items():
        program(f"--dataset_path={dataset}", f"--export_root={folder / name}", QUICK, *flags,
                "--max_steps=1")  # fmt: skip
        assert program.exit_code == 0
    return folder


@pytest.mark.parametrize(("name", "others"), [("plain", RICH), ("rich", PLAIN)])
def test_every_layer_is_loaded_or_refused(program, dataset, saved, capsys, name, others):
    common = ("--mode=test", f"--dataset_path={dataset}", f"--load_checkpoint_path={saved / name}")
    tested = [program(*common, QUICK, *flags, model=())[-1] for flags in ((), MODELS[name])]
    assert program.exit_code == 0
    name_of_metric = "test_full_ndcg@10"
    assert tested[0]["data"][name_of_metric] == tested[1]["data"][name_of_metric]
    for other in (*others, "--activation=swiglu"):
        capsys.readouterr()
        program(*common, QUICK, other, model=())
        assert program.exit_code == 2, other
        assert str(saved / name) in capsys.readouterr().err
