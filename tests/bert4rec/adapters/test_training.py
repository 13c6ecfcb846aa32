# SPDX-License-Identifier: Apache-2.0
"""Runs that train adapters: what moves, what stays, what a checkpoint holds."""

import pytest
import torch

from bert4rec.model.network import ADAPTERS, Bert4Rec
from bert4rec.model.scoring import scorer_for
from bert4rec.model.weights import MODEL_GROUP, Bert4RecCheckpoint
from tests.checkpoints import assert_same, latest
from tests.harness import assert_tells

RANK = "--adapter_rank=4"


def tune(program, dataset, folder, adapter, *flags):
    """Runs `program`, or `refused`, with an adapter."""
    return program(
        *(f"--dataset_path={dataset}", f"--export_root={folder}", "--weight_decay=0.01"),
        *(f"--adapter={adapter}", RANK, "--lr=0.05", *flags),
    )


@pytest.mark.parametrize("adapter", ["lora", "ilora"])
@pytest.mark.parametrize(
    "flags",
    [("--head=tied", "--head_transform"), ("--loss=sampled", "--num_negatives=8", "--clip_norm=1")],
    ids=["full", "sampled"],
)
def test_only_adapters_move(program, dataset, tmp_path, capsys, adapter, flags):
    run = f"--export_root={tmp_path / 'base'}"
    program(f"--dataset_path={dataset}", run, "--max_steps=3", *flags)
    base = f"--load_checkpoint_path={tmp_path / 'base'}"
    capsys.readouterr()
    tune(program, dataset, tmp_path / "run", adapter, base, "--max_steps=4", *flags)
    before = latest(tmp_path / "base").tensors(MODEL_GROUP)
    after = latest(tmp_path / "run").tensors(MODEL_GROUP)
    added = {name for name in after if name.startswith(ADAPTERS)}
    assert after.keys() - added == before.keys()
    assert [name for name, tensor in before.items() if not torch.equal(tensor, after[name])] == []
    # Four layers of each of two blocks, the head's, each with A and B; and the gate.
    assert len(added) == 16 + 2 * ("--head_transform" in flags) + (adapter == "ilora")
    assert all(after[name].abs().max() > 0 for name in added)
    trained = sum(after[name].numel() for name in added)
    count = sum(tensor.numel() for tensor in after.values())
    line = f"trainable: {trained:,} of {count:,} parameters ({trained / count:.2%})"
    assert line in capsys.readouterr().out
    assert len(latest(tmp_path / "run").tensors("optimizer")) == 3 * len(added)


def scores(folder, histories):
    stored = Bert4RecCheckpoint.open(folder)
    return scorer_for(stored.load(), histories, causal=stored.causal).vectors


@pytest.mark.parametrize("adapter", ["lora", "ilora"])
def test_a_resumed_run_equals_the_whole_and_is_tested_with_its_adapters(
    program, dataset, tmp_path, trained, adapter
):
    base, flags = f"--load_checkpoint_path={trained}", ("--num_epochs=1", "--dropout=0.2")
    whole = tune(program, dataset, tmp_path / "whole", adapter, base, *flags)[-1]["data"]
    tune(program, dataset, tmp_path / "parts", adapter, base, *flags, "--max_steps=5")
    tune(program, dataset, tmp_path / "parts", adapter, "--resume", *flags)
    assert latest(tmp_path / "parts").state["step"] > 5
    assert_same(tmp_path / "whole", tmp_path / "parts")
    test = ("--mode=test", f"--dataset_path={dataset}")
    tested = program(*test, f"--load_checkpoint_path={tmp_path / 'whole'}")[-1]["data"]
    assert {name: tested[name] for name in tested if name in whole} == {
        name: value for name, value in whole.items() if name in tested
    }
    untuned = program(*test, base)[-1]["data"]
    assert tested["test_full_mrr"] != untuned["test_full_mrr"]


def test_a_run_begins_with_merged_adapters_of_another(program, refused, dataset, tmp_path, trained):
    base = f"--load_checkpoint_path={trained}"
    tune(program, dataset, tmp_path / "lora", "lora", base, "--max_steps=4")
    lora = f"--load_checkpoint_path={tmp_path / 'lora'}"
    stored = Bert4RecCheckpoint.open(tmp_path / "lora")
    again = Bert4Rec(stored.config, stored.num_items, stored.adapter).eval()
    stored.load_base_into(again)
    histories = [torch.arange(start, start + 5).numpy() for start in (1, 9, 30)]
    torch.testing.assert_close(
        scorer_for(again, histories, causal=False).vectors, scores(stored.path, histories)
    )
    program(f"--dataset_path={dataset}", lora, "--max_steps=1", f"--export_root={tmp_path / 'all'}")
    assert Bert4RecCheckpoint.open(tmp_path / "all").adapter.adapter == "none"
    tune(program, dataset, tmp_path / "ilora", "ilora", lora, "--max_steps=1")
    ilora = f"--load_checkpoint_path={tmp_path / 'ilora'}"
    error = tune(refused, dataset, tmp_path / "next", "lora", ilora, "--max_steps=1")
    assert_tells(error, "ilora")


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ((), "--load_checkpoint_path"),
        (("--resume",), "run"),
        (("BASE", "--parallelism=dmp"), "--parallelism dmp"),
        (("BASE", "--adapter=ilora", "--adapter_rank=6"), "6 4"),
        (("BASE", "--mode=test"), "none"),
    ],
)
def test_senseless_settings_are_refused(refused, dataset, tmp_path, trained, flags, facts):
    flags = [flag.replace("BASE", f"--load_checkpoint_path={trained}") for flag in flags]
    run = f"--export_root={tmp_path / 'run'}"
    folder = () if "--mode=test" in flags else (run,)
    error = refused(f"--dataset_path={dataset}", *folder, "--adapter=lora", *flags)
    assert_tells(error, "--adapter", *facts.split())
    assert not (tmp_path / "run" / "latest.json").exists()
