# SPDX-License-Identifier: Apache-2.0
"""A deployed BERT4Rec recommends as its checkpoint, for histories of every shape."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.model.network import ADAPTERS, Bert4Rec
from bert4rec.model.scoring import scorer_for
from bert4rec.model.weights import MODEL_GROUP, weights_of
from bert4rec.model.weights import NUM_ITEMS as NUM_ITEMS_KEY
from bert4rec.serve.export import Bert4RecExport
from recsys.data.manifest import Manifest
from recsys.data.sequences.titles import write_titles
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.scorer import LOWEST_SCORE
from recsys.serve.client.requests import BadRequestError
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from recsys.train.checkpoint import MODEL, CheckpointError
from recsys.train.origin import FINGERPRINT
from recsys.train.saving.write import write_checkpoint
from tests.bert4rec.conftest import NUM_ITEMS as CATALOGUE
from tests.bert4rec.conftest import raw_id
from tests.harness import refusal
from tests.recsys.serve.checkpoints import (
    BERT4REC_SETTINGS,
    bert4rec_checkpoint,
    dlrm_checkpoint,
)
from tests.recsys.serve.checkpoints import NUM_ITEMS_IN_CATALOGUE as NUM_ITEMS

CPU = torch.device("cpu")
TOP_K = 5
HISTORIES = ([3], [7, 9, 7], list(range(1, 12)), list(range(11, 0, -1)))


def deployed(
    checkpoint, folder, *, dataset=None, titles=False, artifact_format="eager", **settings
):
    export = Bert4RecExport(
        checkpoint, RatingsExportOptions(top_k=TOP_K, raw_ids=dataset, titles=titles)
    )
    serving = ServingSettings(format=artifact_format)
    found = deploy(
        export, DeploySettings(repository=folder, serving=serving, verify=48, **settings)
    )
    return export.served_class.open(found.folder, CPU)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A checkpoint, its model, and the deployed one in two formats."""
    folder = tmp_path_factory.mktemp("plain")
    checkpoint, model = bert4rec_checkpoint(folder / "checkpoint")
    served = {
        name: deployed(checkpoint, folder / name, artifact_format=name)
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


def adapted_checkpoint(path, num_items=NUM_ITEMS, state=None, **settings):
    """Writes a BERT4Rec with large adapters to a folder; returns both, as `bert4rec_checkpoint`."""
    values = BERT4REC_SETTINGS | {"adapter_rank": 4, "load_checkpoint_path": "base"} | settings
    config = Bert4RecConfig.from_dict(values)
    torch.manual_seed(1)
    model = Bert4Rec(config.model, num_items, config.adapter).eval()
    model.reset_parameters(0.3)
    for name, parameter in model.named_parameters():
        if name.startswith(ADAPTERS):
            torch.nn.init.normal_(parameter, 0, 1 if "gate" in name else 0.1)
    state = {"step": 7, MODEL: "bert4rec", NUM_ITEMS_KEY: num_items} | (state or {})
    write_checkpoint(path, {MODEL_GROUP: weights_of(model)}, state, config.to_dict())
    return path, model


CLOZE = {"head": "tied", "norm": "post", "activation": "gelu", "positions_from": "start"}
CAUSAL = {"objective": "causal", "head_transform": True}
ALL_FORMATS = ("eager", "torchscript", "onnx")
SERVED = {
    "cloze": (CLOZE, ALL_FORMATS),
    "causal": (CAUSAL, ALL_FORMATS),
    "lora": ({"adapter": "lora", "head_transform": True}, ("eager", "torchscript")),
    "ilora": ({"adapter": "ilora", "head_transform": True}, ALL_FORMATS),
    "causal ilora": ({"adapter": "ilora", **CAUSAL}, ("eager", "torchscript")),
}


def served_models():
    """Returns each model in each of its formats; the slowest is for releases."""
    for name, (_, formats) in SERVED.items():
        for each in formats:
            marks = pytest.mark.release if (name, each) == ("ilora", "onnx") else ()
            yield pytest.param(name, each, marks=marks)


@pytest.mark.parametrize(("model", "artifact_format"), list(served_models()))
def test_recommendations_are_those_of_the_checkpoint(tmp_path, model, artifact_format):
    settings, _ = SERVED[model]
    make = adapted_checkpoint if "adapter" in settings else bert4rec_checkpoint
    checkpoint, model = make(tmp_path / "checkpoint", **settings)
    served = deployed(checkpoint, tmp_path / "models", artifact_format=artifact_format)
    causal = settings.get("objective") == "causal"
    width = 12 if causal else 11  # the mask takes a place
    padded = np.array([h + [0] * (width - len(h)) for h in HISTORIES], np.int64)
    warm_up = served.warmup_request(3)
    served.check(warm_up)
    assert served.predict([warm_up])[0]["items"].shape == (3, TOP_K)
    for excluded in (True, False):
        request = {"history": padded, "exclude_seen": np.full((4, 1), excluded)}
        served.check(request)
        (answer,) = served.predict([request])
        assert answer["items"].dtype == np.int64
        for row, history in enumerate(HISTORIES):
            items, scores = best(model, history, excluded, causal)
            np.testing.assert_allclose(answer["scores"][row], scores, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(answer["items"][row], items)


@pytest.mark.parametrize("adapter", ["lora", "ilora"])
def test_adapters_that_are_constant_are_merged(tmp_path, adapter):
    checkpoint, _ = adapted_checkpoint(tmp_path / "checkpoint", adapter=adapter)
    export = Bert4RecExport(checkpoint, RatingsExportOptions(top_k=TOP_K))
    has_adapters = any(name.startswith(ADAPTERS) for name in export.weights("none"))
    assert has_adapters == (adapter == "ilora")


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
    facts = ("'history'", "row 1", "feature 0", NUM_ITEMS + 1, f"[0, {NUM_ITEMS + 1})")
    with refusal(*facts, kind=BadRequestError):
        strict.check(request)
    lenient.check(request)
    (answer,) = lenient.predict([request])
    np.testing.assert_array_equal(answer["items"][1], best(model, [2], excluded=True)[0])
    for served in (strict, lenient):
        with refusal("row 1", kind=BadRequestError):
            served.check({"history": np.array([[4], [0]])})


def test_other_models_and_impossible_wishes_are_refused(plain, tmp_path):
    checkpoint = plain[0]
    other, _ = dlrm_checkpoint(tmp_path / "dlrm")
    with refusal(other, "BERT4Rec", kind=CheckpointError):
        Bert4RecExport(other, RatingsExportOptions(top_k=TOP_K))
    with refusal("`top_k` 51", "1 and 50"):
        Bert4RecExport(checkpoint, RatingsExportOptions(top_k=NUM_ITEMS + 1))
    with refusal("`quantize` int8", "DLRM"):
        deployed(checkpoint, tmp_path / "models", quantize="int8")
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".deploy.lock"]


def test_the_signature_of_a_fixed_network_has_no_open_length(plain):
    signature = Bert4RecExport(plain[0], RatingsExportOptions(top_k=TOP_K)).signature(
        fixed_shapes=True
    )
    assert [tensor.shape for tensor in signature.inputs] == [(11,), (1,)]
    assert not any(tensor.optional or tensor.ragged for tensor in signature.inputs)
    assert dataclasses.asdict(signature)["outputs"][0]["shape"] == (TOP_K,)


def named(folder, dataset, name, *, make=bert4rec_checkpoint, **settings):
    """A model over the items of the prepared dataset, deployed with their raw ids."""
    state = {FINGERPRINT: Manifest.load(dataset).fingerprint}
    adapter = {} if make is bert4rec_checkpoint else {"adapter": "ilora"}
    path = folder / f"checkpoint_{name}"
    checkpoint, model = make(path, num_items=CATALOGUE, state=state, **adapter)
    return deployed(checkpoint, folder / "models", dataset=dataset, name=name, **settings), model


def raw(*items):
    return np.array([[raw_id(item).encode() if item else b"" for item in items]], np.object_)


def test_a_raw_id_that_is_not_known_follows_the_policy(tmp_path, dataset):
    strict, _ = named(tmp_path, dataset, "strict")
    lenient, model = named(tmp_path, dataset, "lenient", out_of_range="zero")
    request = {"history": np.append(raw(3, 8), [[b"no film"]], axis=1)}
    with refusal("row 0", "position 2", "'no film'", kind=BadRequestError):
        strict.check(request)
    lenient.check(request)
    (answer,) = lenient.predict([request])
    items, _ = best(model, [3, 8], excluded=True)
    assert answer["items"].tolist() == [[raw_id(item).encode() for item in items]]
    with refusal("row 0", kind=BadRequestError):
        lenient.check({"history": np.array([[b"no film"]], np.object_)})


def test_raw_ids_of_another_dataset_are_refused(tmp_path, dataset):
    for settings in ({"num_items": CATALOGUE + 1}, {"state": {FINGERPRINT: "another"}}):
        settings = {"num_items": CATALOGUE} | settings
        checkpoint, _ = bert4rec_checkpoint(tmp_path / str(len(settings)), **settings)
        with refusal(dataset, "`raw_ids`", kind=CheckpointError):
            Bert4RecExport(checkpoint, RatingsExportOptions(top_k=TOP_K, raw_ids=dataset))


def test_no_exported_network_reads_strings(tmp_path, dataset):
    with refusal("`raw_ids`", "`backend` python", "`format` eager"):
        named(tmp_path, dataset, "raw", artifact_format="torchscript")


def test_a_deployed_model_answers_as_recommend_does(tmp_path, recommend, dataset):
    served, _ = named(tmp_path, dataset, "served", make=adapted_checkpoint)
    lines = "\n".join(" ".join(map(raw_id, history)) for history in HISTORIES)
    flags = (f"--dataset_path={dataset}", f"--top_k={TOP_K}", "--base_device=cpu")
    checkpoint = f"--load_checkpoint_path={tmp_path / 'checkpoint_served'}"
    expected = recommend(*flags, checkpoint, lines=lines)
    assert served.deployment.signature.inputs[0].config_dtype == "TYPE_STRING"
    served.check(served.warmup_request(2))
    requests = [{"history": raw(0, *history, 0)} for history in HISTORIES]
    for request in requests:
        served.check(request)
    answers = served.predict(requests)
    for answer, line in zip(answers, expected, strict=True):
        assert [name.decode() for name in answer["items"][0]] == line["items"]
        np.testing.assert_allclose(answer["scores"][0], line["scores"], rtol=1e-5, atol=1e-5)


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
    with refusal("`titles`", dataset):
        named(tmp_path, dataset, "none", titles=True)
    with refusal("`titles`", "`raw_ids`"):
        Bert4RecExport(
            tmp_path / "checkpoint_plain", RatingsExportOptions(top_k=TOP_K, titles=True)
        )


def by_number(items):
    """Yields (number, raw id) of a row of raw ids."""
    numbers = {raw_id(item).encode(): item for item in range(1, CATALOGUE + 1)} | {b"": 0}
    return [(numbers[item], item) for item in items[0].tolist()]
