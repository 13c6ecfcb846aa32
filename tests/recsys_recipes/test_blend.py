# SPDX-License-Identifier: Apache-2.0
"""A trained model and a counted one, added: chosen by validation, saved, asked and deployed."""

import itertools
import json

import numpy as np
import pytest
import torch

from bert4rec.model.weights import Bert4RecCheckpoint
from recsys.data.sequences.files import read_sequences
from recsys.models.baselines import COUNTED_BASELINES, fit_baseline
from recsys.ratings.blend import Blend
from recsys.ratings.data.split import known_items, targets_of, true_items
from recsys.ratings.ranking.evaluate import rank_on_host
from recsys.ratings.scorer import history_item_pairs
from recsys.train.checkpoint import CheckpointError
from recsys_recipes import fitted
from recsys_recipes.blending.serving import ServedBlend
from recsys_recipes.blending.stored import StoredBlend, shares_of
from recsys_recipes.models import MODELS, model_of
from recsys_recipes.serving import deploy
from tests import harness
from tests.bert4rec.conftest import make_program, raw_id, write_other_dataset
from tests.harness import assert_tells, refusal

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bert4rec(dataset, tmp_path_factory):
    """A run of BERT4Rec that has hardly learnt anything."""
    folder = tmp_path_factory.mktemp("bert4rec")
    flags = (f"--dataset_path={dataset}", f"--export_root={folder / 'run'}", "--baselines=")
    make_program(folder)(*flags, "--max_steps=3", "--objective=causal")
    return folder / "run"


def run(*flags, status=0):
    assert fitted.main(["counted", "blend", *map(str, flags)]) == status


@pytest.fixture(scope="module")
def blended(dataset, bert4rec, tmp_path_factory):
    """The folder of a blend, and its log."""
    folder = tmp_path_factory.mktemp("blend")
    flags = (f"--dataset_path={dataset}", f"--blend_of={bert4rec}", "--baselines=")
    run(*flags, f"--export_root={folder / 'run'}", f"--log_path={folder / 'log'}")
    return folder / "run", folder / "log"


def gains(model, sequences):
    """Returns the NDCG@10 of each validation target."""
    ranks = rank_on_host(model, sequences, "validation", {}).ranks["full"]
    return np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)


def tenths(count):
    """Yields all weights of `count` models that are tenths and add up to 1."""
    for added in itertools.product(range(11), repeat=count - 1):
        if sum(added) <= 10:
            yield [(10 - sum(added)) / 10, *(n / 10 for n in added)]


def plain_scores(model, histories):
    """Returns the standardised scores of each history, one after the other."""
    rows = []
    with torch.inference_mode():
        for history in histories:
            items = torch.arange(1, model.num_items + 1)[None]
            row = model.scorer([history]).scores_of(items)[0].double().numpy()
            rows.append((row - row.mean()) / row.std())
    return np.stack(rows)


def test_the_most_even_of_the_weights_that_are_level_by_validation_are_chosen(
    dataset, bert4rec, blended
):
    sequences, settings = read_sequences(dataset), StoredBlend.open(blended[0]).settings
    first = Bert4RecCheckpoint.open(bert4rec).open_model()
    fitted = {name: fit_baseline(name, sequences) for name in COUNTED_BASELINES}
    found = {}
    for names in itertools.combinations(fitted, 2):
        models = [first, *(fitted[name] for name in names)]
        for weights in tenths(3):
            added = {n: w for n, w in zip(names, weights[1:], strict=True) if w}
            key = (*added.items(), ("first", weights[0]))
            if key not in found:
                found[key] = gains(Blend(models, weights), sequences)
    best = max(found.values(), key=np.mean)
    level = {
        key: gain
        for key, gain in found.items()
        if (best - gain).mean() <= (best - gain).std() / len(gain) ** 0.5
    }
    shares = [round(share, 9) for share in shares_of(settings.weights)]
    chosen = (*zip(settings.blend_with, settings.weights, strict=True), ("first", shares[0]))
    assert max(shares) == min(max(weight for _, weight in key) for key in level)
    assert level[chosen].mean() > gains(first, sequences).mean() + 0.05
    logged = harness.read_log(blended[1])[-2]["data"]["full_ndcg@10"]
    assert logged == pytest.approx(level[chosen].mean(), abs=1e-12)


def test_scores_are_sums_of_standardised_ones(dataset, bert4rec, blended):
    sequences, blend = read_sequences(dataset), StoredBlend.open(blended[0]).open_model()
    histories = known_items(sequences, "test", np.arange(9))
    scores = [plain_scores(model, histories) for model in blend.models]
    assert len(scores) > 1
    assert sum(blend.weights) == pytest.approx(1)
    expected = sum(w * score for w, score in zip(blend.weights, scores, strict=True))
    with torch.inference_mode():
        found = blend.scorer(histories).dense().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    of_first = Bert4RecCheckpoint.open(bert4rec).open_model()
    np.testing.assert_allclose(scores[0], plain_scores(of_first, histories), rtol=0, atol=1e-9)


def test_a_checkpoint_is_tested_and_asked_as_it_was(dataset, blended, tmp_path, capsys):
    folder, log = blended
    again, common = (
        tmp_path / "log",
        (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}"),
    )
    run("--mode=test", *common, "--baselines=", f"--log_path={again}")
    before, after = (harness.read_log(each)[-1]["data"] for each in (log, again))
    assert after == before
    assert model_of(folder) is MODELS["blend"]
    capsys.readouterr()
    run("--mode=recommend", *common, "--recommend_users=user-1", "--output_format=json")
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert answer["user"] == "user-1"
    assert len(answer["items"]) == 10


@pytest.mark.parametrize("raw", [False, True], ids=["numbers", "raw ids"])
def test_served_answers_are_the_lists_of_the_checkpoint(dataset, blended, tmp_path, raw):
    models, folder = tmp_path / "models", blended[0]
    flags = [f"--raw_ids={dataset}"] if raw else []
    command = (f"--checkpoint={folder}", f"--repository={models}", "--top_k=5", *flags)
    assert harness.call(deploy, *command) == 0
    served, sequences = ServedBlend.open(models / "blend" / "1", CPU), read_sequences(dataset)
    rows = np.arange(len(targets_of(sequences, "test")))
    histories = known_items(sequences, "test", rows)
    with torch.inference_mode():
        scorer = StoredBlend.open(folder).open_model().scorer(histories)
    best, scores = scorer.top(5, *history_item_pairs(histories, CPU))
    for row, history in enumerate(histories):
        sent = np.array([[raw_id(i).encode() for i in history]], object) if raw else history[None]
        answer = served.respond({"history": sent})
        expected = best[row].tolist()
        assert answer["items"][0].tolist() == (
            [raw_id(i).encode() for i in expected] if raw else expected
        )
        np.testing.assert_allclose(answer["scores"][0], scores[row].numpy(), rtol=0, atol=1e-5)


def test_a_blend_may_be_blended_once_more(dataset, blended, tmp_path):
    common = (f"--dataset_path={dataset}", f"--blend_of={blended[0]}", "--baselines=")
    run(*common, f"--export_root={tmp_path / 'run'}", f"--log_path={tmp_path / 'log'}",
        "--blend_with=ease", "--weights=0.5")  # fmt: skip
    command = (f"--checkpoint={tmp_path / 'run'}", f"--repository={tmp_path / 'models'}")
    assert harness.call(deploy, *command) == 0
    served = ServedBlend.open(tmp_path / "models" / "blend" / "1", CPU)
    stored = StoredBlend.open(tmp_path / "run")
    history = np.array([3, 4, 5])
    best, _ = stored.open_model().scorer([history]).top(10, *history_item_pairs([history], CPU))
    assert served.respond({"history": history[None]})["items"].tolist() == best.tolist()
    first, second = (StoredBlend.open(p).settings for p in (stored.members[0].path, blended[0]))
    assert first == second


@pytest.mark.parametrize(
    ("names", "weights"), [(["item_knn"], [0.25]), (["ease", "markov"], [0.5, 0.125])]
)
def test_weights_and_models_may_be_given(dataset, bert4rec, tmp_path, names, weights):
    common = (f"--dataset_path={dataset}", f"--blend_of={bert4rec}", "--baselines=")
    run(*common, f"--export_root={tmp_path / 'run'}", f"--log_path={tmp_path / 'log'}",
        f"--blend_with={','.join(names)}", f"--weights={','.join(map(str, weights))}")  # fmt: skip
    stored = StoredBlend.open(tmp_path / "run")
    assert (stored.settings.blend_with, stored.settings.weights) == (tuple(names), tuple(weights))
    kinds = [model_of(member.path).name for member in stored.members]
    assert kinds == ["bert4rec", *names]
    assert stored.open_model().weights == [1 - sum(weights), *weights]


def test_models_may_be_given_and_their_weights_chosen(dataset, bert4rec, tmp_path):
    common = (f"--dataset_path={dataset}", f"--blend_of={bert4rec}", "--baselines=")
    run(*common, f"--export_root={tmp_path / 'run'}", f"--log_path={tmp_path / 'log'}",
        "--blend_with=markov")  # fmt: skip
    settings = StoredBlend.open(tmp_path / "run").settings
    assert settings.blend_with == ("markov",)
    assert 0 < settings.weights[0] < 1


def test_what_cannot_be_blended_is_refused(dataset, bert4rec, blended, tmp_path, capsys):
    common = (f"--dataset_path={dataset}", f"--export_root={tmp_path / 'run'}")
    other = write_other_dataset(tmp_path / "other")
    for flags, facts in (
        ((), ["--blend_of"]),
        ((f"--blend_of={tmp_path / 'none'}",), [tmp_path / "none"]),
        ((f"--blend_of={bert4rec}", "--blend_with=other"), ["--blend_with", "markov", "other"]),
        ((f"--blend_of={bert4rec}", "--blend_with=ease", "--weights=2"), ["--weights", "2"]),
        ((f"--blend_of={bert4rec}", "--blend_with=ease", "--weights=nan"), ["--weights", "nan"]),
        ((f"--blend_of={bert4rec}", "--blend_with=ease", "--weights=x"), ["--weights", "x"]),
        ((f"--blend_of={bert4rec}", "--weights=.5"), ["--weights", "--blend_with"]),
        ((f"--blend_of={bert4rec}", "--blend_with=ease,markov,item_knn"), ["--blend_with", "2"]),
        ((f"--blend_of={bert4rec}", "--blend_with=ease,ease"), ["--blend_with", "ease,ease"]),
        ((f"--blend_of={bert4rec}", f"--dataset_path={other}"), ["--dataset_path", other]),
    ):
        run(*common, *flags, f"--log_path={tmp_path / 'log'}", status=2)
        assert_tells(capsys.readouterr().err, *facts)
    assert not (tmp_path / "run").exists()


def test_a_damaged_model_within_is_named(blended, tmp_path):
    (folder,) = blended[0].glob("step_*")
    copy = tmp_path / folder.name
    harness.run("cp", "-r", folder, copy)
    file = copy / "second" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with refusal(kind=CheckpointError, path=file):
        StoredBlend.open(copy).open_model()


def test_targets_are_ranked_without_what_was_seen(dataset, blended):
    sequences = read_sequences(dataset)
    blend = StoredBlend.open(blended[0]).open_model()
    ranks = rank_on_host(blend, sequences, "test", {}).ranks
    truth = true_items(sequences, "test")
    for row in range(0, len(truth), 7):
        (history,) = known_items(sequences, "test", np.array([row]))
        scores = blend.scorer([history]).dense().numpy()[0]
        others = np.delete(np.arange(len(scores)), [truth[row] - 1])
        ahead = set((others[scores[others] >= scores[truth[row] - 1]] + 1).tolist())
        assert ranks["full_with_seen"][row] == len(ahead)
        assert ranks["full"][row] == len(ahead - set(history.tolist()))
