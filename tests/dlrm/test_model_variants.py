# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is loaded whole or refused by name, whatever model the flags ask for."""

import itertools

import pytest

from tests import harness
from tests.dlrm.conftest import make_program

VARIANTS = {
    "cuda_dot": (),
    "dot": ("--interaction_op=dot",),
    "cat": ("--interaction_op=cat",),
    "dcnv2": ("--interaction_op=dcnv2", "--dcn_low_rank_dim=4"),
    "batch norm": ("--batch_norm",),
    "deep": ("--bottom_mlp_sizes=16,12,8", "--top_mlp_sizes=16,12,1"),
}
SAME = {"cuda_dot", "dot"}
ALL = ("--nobatch_norm", "--interaction_op=cuda_dot", "--dcn_low_rank_dim=4")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A checkpoint of each variant, and two in NVIDIA's layout."""
    folder = tmp_path_factory.mktemp("variants")
    program = make_program(folder)
    for name, flags in VARIANTS.items():
        program(f"--dataset={dataset}", f"--save_checkpoint_path={folder / name}", *flags,
                "--max_steps=2", "--test_after=9")  # fmt: skip
        assert program.exit_code == 0
    for name in ("cuda_dot", "cat"):
        path = folder / f"nvidia {name}"
        program(f"--dataset={dataset}", f"--save_checkpoint_path={path}", *VARIANTS[name],
                "--checkpoint_format=nvidia", "--max_steps=2", "--test_after=9")  # fmt: skip
        assert program.exit_code == 0
    return folder


def test_every_pair_of_models(program, dataset, saved, capsys):
    tested = {}
    for path, (asked, flags) in itertools.product(sorted(saved.glob("[!l]*")), VARIANTS.items()):
        capsys.readouterr()
        records = program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={path}",
                          *ALL, *flags)  # fmt: skip
        name = path.name.removeprefix("nvidia ")
        if {name, asked} <= SAME or name == asked:
            assert program.exit_code == 0, capsys.readouterr().err
            metrics = tested.setdefault(path.name, records[-1]["data"])
            assert records[-1]["data"]["log_loss"] == pytest.approx(metrics["log_loss"], rel=1e-6)
        else:
            error = capsys.readouterr().err
            assert program.exit_code == 2, (path.name, asked)
            assert str(path) in error
    assert len(tested) == len(VARIANTS) + 2


def test_a_checkpoint_that_lost_its_settings_is_not_deployed(dataset, saved, tmp_path, capsys):
    """Settings of another model beside the tensors, as of an edited manifest."""
    from recsys_recipes.serving import deploy

    manifest = next((saved / "dcnv2").glob("step_*/manifest.json"))
    text = manifest.read_text()
    manifest.write_text(text.replace('"interaction_op": "dcnv2"', '"interaction_op": "cat"'))
    try:
        status = harness.call(deploy, f"--checkpoint={saved / 'dcnv2'}",
                              f"--repository={tmp_path / 'models'}")  # fmt: skip
    finally:
        manifest.write_text(text)
    assert status == 2
    assert "no place for: interaction.down.0.weight" in capsys.readouterr().err
    assert not (tmp_path / "models" / "dlrm").exists()
