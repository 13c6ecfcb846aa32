# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is loaded whole or refused by name, whatever model the flags ask for."""

import itertools

import pytest

from tests import harness
from tests.dlrm.conftest import DlrmProgram, final

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
    program, nvidia = DlrmProgram(folder), "--checkpoint_format=nvidia"
    runs = VARIANTS | {f"nvidia {name}": (*VARIANTS[name], nvidia) for name in ("cuda_dot", "cat")}
    for name, flags in runs.items():
        program.train(dataset, folder / name, *flags, "--max_steps=2", "--test_after=9")
    return folder


def test_every_pair_of_models(program, dataset, saved):
    tested = {}
    for path, (asked, flags) in itertools.product(sorted(saved.glob("[!l]*")), VARIANTS.items()):
        name = path.name.removeprefix("nvidia ")
        fits = {name, asked} <= SAME or name == asked
        records = program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={path}",
                          *ALL, *flags, status=0 if fits else 2)  # fmt: skip
        if fits:
            loss = final(records)["log_loss"]
            assert loss == pytest.approx(tested.setdefault(path.name, loss), rel=1e-6)
        else:
            assert str(path) in program.stderr
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
