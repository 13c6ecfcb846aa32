# SPDX-License-Identifier: Apache-2.0
"""A deployed BERT4Rec recommends as its checkpoint, for histories of every shape."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from bert4rec.model.next_item import LOWEST_SCORE, NextItemNetwork
from bert4rec.model.scoring import history_item_pairs, scorer_for
from bert4rec.serve.export import Bert4RecExport
from recsys.data.manifest import Manifest
from recsys.data.titles import write_titles
from recsys.serve.client.requests import BadRequestError
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from recsys.train.checkpoint import CheckpointError
from recsys.train.origin import FINGERPRINT
from tests.bert4rec.conftest import NUM_ITEMS as CATALOGUE
from tests.bert4rec.conftest import raw_id
from tests.recsys.serve.checkpoints import NUM_ITEMS_IN_CATALOGUE as NUM_ITEMS
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint

CPU = torch.device("cpu")
TOP_K = 5


def deployed(checkpoint, folder, *, serving=None, top_k=TOP_K, **settings):
    export = Bert4RecExport(checkpoint, top_k)
    settings = DeploySettings(
        repository=folder, serving=serving or ServingSettings(), verify=48, **settings
    )
    found = deploy(export, settings)
    return export.served_class.open(found.folder, CPU)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A checkpoint, its model, and the deployed one in two formats."""
    folder = tmp_path_factory.mktemp("plain")
    checkpoint, model = bert4rec_checkpoint(folder / "checkpoint")
    served = {
        name: deployed(checkpoint, folder / name, serving=ServingSettings(format=name))
        for name in ("eager", "torchscript")
    }
    return checkpoint, model, served


@torch.inference_mode()
def best(model, history, excluded, causal=False, top_k=TOP_K):
    """The best items of one history, from all scores at once."""
    history = np.array(history, np.int64)
    scorer = scorer_for(model, [history], causal=causal)
    scores = scorer.vectors @ scorer.items.T + scorer.bias
    if excluded:
        scores[0, history - 1] = float("-inf")
    values, order = scores[0].topk(top_k)
    return (order + 1).numpy(), values.numpy()


@pytest.fixture
def checkpoint(plain):
    return plain[0]


@pytest.mark.parametrize("artifact_format", ["eager", "torchscript", "onnx"])
@pytest.mark.parametrize(
    "settings",
    [
        {"head": "tied", "norm": "post", "activation": "gelu", "positions_from": "start"},
        {"objective": "causal", "head_transform": True},
    ],
    ids=["cloze", "causal"],
)
def test_recommendations_are_those_of_the_checkpoint(tmp_path, settings, artifact_format):
    checkpoint, model = bert4rec_checkpoint(tmp_path / "checkpoint", **settings)
    served = deployed(
        checkpoint, tmp_path / "models", serving=ServingSettings(format=artifact_format)
    )
    causal = settings.get("objective") == "causal"
    histories = [[3], [7, 9, 7], list(range(1, 12)), list(range(11, 0, -1))]
    width = 12 if causal else 11  # the mask takes a place
    padded = np.array([h + [0] * (width - len(h)) for h in histories], np.int64)
    for excluded in (True, False):
        request = {"history": padded, "exclude_seen": np.full((4, 1), excluded)}
        served.check(request)
        (answer,) = served.predict([request])
        assert answer["items"].dtype == np.int64
        for row, history in enumerate(histories):
            items, scores = best(model, history, excluded, causal)
            np.testing.assert_allclose(answer["scores"][row], scores, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(answer["items"][row], items)


@pytest.mark.parametrize("artifact_format", ["eager", "torchscript"])
def test_nothing_may_stand_anywhere_in_a_history(plain, artifact_format):
    _, model, served = plain
    rows = np.array([[0, 4, 0, 9, 2], [4, 9, 2, 0, 0], [0, 0, 4, 9, 2]], np.int64)
    rows = np.pad(rows, ((0, 0), (3, 3)))
    # Items of the history are left out by default.
    (answer,) = served[artifact_format].predict([{"history": rows}])
    items, _ = best(model, [4, 9, 2], excluded=True)
    for row in range(3):
        np.testing.assert_array_equal(answer["items"][row], items)


def test_requests_of_different_lengths_are_answered_together(plain):
    _, model, served = plain
    requests = [
        {"history": np.array([[5, 6]]), "exclude_seen": np.array([[True]])},
        {"history": np.array([[1], [2], [3]])},
        {"history": np.arange(1, 31)[None], "exclude_seen": np.array([[True]])},
    ]
    answers = served["eager"].predict(requests)
    assert [len(answer["items"]) for answer in answers] == [1, 3, 1]
    items, scores = best(model, [5, 6], excluded=True)
    np.testing.assert_array_equal(answers[0]["items"][0], items)
    np.testing.assert_allclose(answers[0]["scores"][0], scores, rtol=1e-5, atol=1e-5)
    # All thirty items are left out, although the model has room for the last eleven alone.
    assert not set(answers[2]["items"][0].tolist()) & set(range(1, 31))


def test_a_catalogue_that_is_used_up_leaves_places_empty(plain):
    (answer,) = plain[2]["eager"].predict([{"history": np.arange(1, NUM_ITEMS - 1)[None]}])
    assert set(answer["items"][0, :2].tolist()) == {NUM_ITEMS - 1, NUM_ITEMS}
    assert answer["items"][0, 2:].tolist() == [0, 0, 0]
    assert (answer["scores"][0, 2:] == LOWEST_SCORE).all()


def test_a_number_that_is_no_item_follows_the_policy(plain, tmp_path):
    checkpoint, model, served = plain
    strict = served["eager"]
    lenient = deployed(checkpoint, tmp_path / "models", name="lenient", out_of_range="zero")
    request = {"history": np.array([[4, 9], [NUM_ITEMS + 1, 2]])}
    with pytest.raises(
        BadRequestError,
        match=rf"'history', row 1, feature 0: {NUM_ITEMS + 1} is not in \[0, {NUM_ITEMS + 1}\)",
    ):
        strict.check(request)
    lenient.check(request)
    (answer,) = lenient.predict([request])
    np.testing.assert_array_equal(answer["items"][1], best(model, [2], excluded=True)[0])
    for served in (strict, lenient):
        with pytest.raises(BadRequestError, match="row 1: holds no item"):
            served.check({"history": np.array([[4], [0]])})


@torch.inference_mode()
def test_a_catalogue_in_blocks_gives_the_same_items(plain):
    model = plain[1]
    histories = [np.array([3, 8], np.int64), np.array([50, 1, 17], np.int64)]
    scorer = scorer_for(model, histories, causal=False)
    whole = scorer.top(TOP_K, *history_item_pairs(histories, CPU))
    parts = scorer.top(TOP_K, *history_item_pairs(histories, CPU), block_rows=7)
    torch.testing.assert_close(parts[1], whole[1])
    assert torch.equal(parts[0], whole[0])


@torch.inference_mode()
def test_the_exported_network_answers_any_number_of_rows(plain):
    model = plain[1]
    network = NextItemNetwork(model, TOP_K, causal=False).eval()
    assert network.history_length == 11
    history = torch.zeros(1, 11, dtype=torch.int64)
    history[0, 3] = 4
    items, _ = network(history, torch.tensor([[True]]))
    np.testing.assert_array_equal(items[0].numpy(), best(model, [4], excluded=True)[0])


def test_other_models_and_impossible_wishes_are_refused(plain, tmp_path):
    checkpoint = plain[0]
    other, _ = dlrm_checkpoint(tmp_path / "dlrm")
    with pytest.raises(CheckpointError, match="not a checkpoint of BERT4Rec"):
        Bert4RecExport(other, TOP_K)
    with pytest.raises(ValueError, match=r"`top_k` 51 must lie in \[1, 50\]"):
        Bert4RecExport(checkpoint, NUM_ITEMS + 1)
    with pytest.raises(ValueError, match="`quantize` int8 is for DLRM"):
        deployed(checkpoint, tmp_path / "models", quantize="int8")
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".deploy.lock"]


def test_the_signature_of_a_fixed_network_has_no_open_length(plain):
    signature = Bert4RecExport(plain[0], TOP_K).signature(fixed_shapes=True)
    assert [tensor.shape for tensor in signature.inputs] == [(11,), (1,)]
    assert not any(tensor.optional or tensor.ragged for tensor in signature.inputs)
    assert dataclasses.asdict(signature)["outputs"][0]["shape"] == (TOP_K,)


def test_warming_up_is_a_valid_request(plain):
    for served in plain[2].values():
        request = served.warmup_request(3)
        served.check(request)
        assert served.predict([request])[0]["items"].shape == (3, TOP_K)


def named(folder, dataset, name, *, titles=False, **settings):
    """A model over the items of the prepared dataset, deployed with their raw ids."""
    fingerprint = Manifest.load(dataset).fingerprint
    checkpoint, model = bert4rec_checkpoint(
        folder / f"checkpoint_{name}", num_items=CATALOGUE, state={FINGERPRINT: fingerprint}
    )
    export = Bert4RecExport(checkpoint, TOP_K, dataset, titles=titles)
    settings = DeploySettings(repository=folder / "models", name=name, verify=48, **settings)
    return export.served_class.open(deploy(export, settings).folder, CPU), model


def raw(*items):
    return np.array([[raw_id(item).encode() if item else b"" for item in items]], np.object_)


def test_requests_and_answers_may_hold_raw_ids(tmp_path, dataset):
    served, model = named(tmp_path, dataset, "raw")
    assert served.deployment.signature.inputs[0].config_dtype == "TYPE_STRING"
    request = {"history": raw(3, 0, 8, 5)}
    served.check(request)
    (answer,) = served.predict([request])
    items, scores = best(model, [3, 8, 5], excluded=True)
    assert answer["items"].tolist() == [[raw_id(item).encode() for item in items]]
    np.testing.assert_allclose(answer["scores"][0], scores, rtol=1e-5, atol=1e-5)
    served.check(served.warmup_request(2))


def test_a_raw_id_that_is_not_known_follows_the_policy(tmp_path, dataset):
    strict, _ = named(tmp_path, dataset, "strict")
    lenient, model = named(tmp_path, dataset, "lenient", out_of_range="zero")
    request = {"history": np.append(raw(3, 8), [[b"no film"]], axis=1)}
    with pytest.raises(
        BadRequestError, match="row 0, position 2: 'no film' is no item of the catalogue"
    ):
        strict.check(request)
    lenient.check(request)
    (answer,) = lenient.predict([request])
    items, _ = best(model, [3, 8], excluded=True)
    assert answer["items"].tolist() == [[raw_id(item).encode() for item in items]]
    with pytest.raises(BadRequestError, match="row 0: holds no item"):
        lenient.check({"history": np.array([[b"no film"]], np.object_)})


def test_raw_ids_of_another_dataset_are_refused(tmp_path, dataset):
    for settings in ({"num_items": CATALOGUE + 1}, {"state": {FINGERPRINT: "another"}}):
        settings = {"num_items": CATALOGUE} | settings
        checkpoint, _ = bert4rec_checkpoint(tmp_path / str(len(settings)), **settings)
        with pytest.raises(CheckpointError, match="name the dataset of the training with `raw_id"):
            Bert4RecExport(checkpoint, TOP_K, dataset)


def test_no_exported_network_reads_strings(tmp_path, dataset):
    with pytest.raises(ValueError, match="`raw_ids` needs `backend` python `format` eager"):
        named(tmp_path, dataset, "raw", serving=ServingSettings(format="torchscript"))


def test_answers_may_have_titles(tmp_path, dataset):
    titled = tmp_path / "titled"
    shutil.copytree(dataset, titled)
    write_titles(titled, [f"Film № {item}" if item % 2 else "" for item in range(1, CATALOGUE + 1)])
    served, _ = named(tmp_path, titled, "with_titles", titles=True)
    requests = [{"history": raw(3, 0, 8, 5)}, {"history": raw(*range(1, CATALOGUE))}]
    for answer in served.predict(requests):
        numbers = [
            int(title.decode().removeprefix("Film № ")) if title else 0
            for title in answer["titles"][0]
        ]
        shown = [item if i % 2 else b"" for i, item in by_number(answer["items"])]
        assert [raw_id(n).encode() if n else b"" for n in numbers] == shown
    assert answer["titles"][0, 1:].tolist() == [b""] * (TOP_K - 1)  # one item is left
    served.check(served.warmup_request(2))
    # Titles change nothing for who does not ask for them.
    plain, _ = named(tmp_path, titled, "plain")
    same, _ = named(tmp_path, dataset, "plain_2")
    assert plain.deployment.signature == same.deployment.signature
    assert not list((tmp_path / "models" / "plain").rglob("titles.json"))
    with pytest.raises(ValueError, match="has none; prepare it again"):
        named(tmp_path, dataset, "none", titles=True)
    with pytest.raises(ValueError, match="`titles` needs `raw_ids`"):
        Bert4RecExport(tmp_path / "checkpoint_plain", TOP_K, titles=True)


def by_number(items):
    """Yields (number, raw id) of a row of raw ids."""
    numbers = {raw_id(item).encode(): item for item in range(1, CATALOGUE + 1)} | {b"": 0}
    return [(numbers[item], item) for item in items[0].tolist()]
