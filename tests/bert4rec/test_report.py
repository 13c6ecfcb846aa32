# SPDX-License-Identifier: Apache-2.0
"""What training, test and recommending print, and the ranks of users that a test writes."""

import itertools
import math
import shutil

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from preproc import amazon
from recsys.data.manifest import Manifest, fingerprint
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.data.sequences.titles import write_titles
from recsys.ratings.ranking.metrics import KS, ranking_metrics
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, NUM_USERS, SMALL_MODEL, peak_mib, raw_id, show
from tests.harness import assert_tells

RANKINGS = ("full", "full_with_seen", "popular", "uniform")
METRICS = list(ranking_metrics(np.array([0]), KS))


def test_a_test_prints_a_table_beside_popularity(program, loaded, capsys):
    data = program("--mode=test", *loaded)[-1]["data"]
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    start = next(i for i, line in enumerate(lines) if line.startswith("metric"))
    assert lines[start - 1].split() == list(RANKINGS)
    rows = {
        line.split()[0]: [float(cell) for cell in line.split()[1:]]
        for line in lines[start + 1 : start + 1 + len(METRICS)]
    }
    assert list(rows) == METRICS
    for metric, cells in rows.items():
        for ranking, (model, half, popular) in zip(
            RANKINGS, np.reshape(cells, (4, 3)), strict=True
        ):
            name = f"test_{ranking}_{metric}"
            baseline = f"test_popularity_{ranking}_{metric}".replace(
                "_full_" + metric, "_" + metric
            )
            width = data[f"{name}_high"] - data[f"{name}_low"]
            expected = [data[name], width / 2, data[baseline]]
            assert [model, half, popular] == pytest.approx(expected, abs=6e-5)


def test_the_learning_rate_shows_its_digits(program, dataset, capsys):
    program(f"--dataset_path={dataset}", "--warmup_steps=1000", "--lr=0.001", "--max_steps=3",
            "--print_freq=1")  # fmt: skip
    rates = [line.split("lr: ")[1].split()[0] for line in capsys.readouterr().out.splitlines()
             if "lr: " in line]  # fmt: skip
    assert [float(rate) for rate in rates] == [1e-6, 2e-6, 3e-6]


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(dataset, tmp_path):
    flags = (f"--dataset_path={dataset}", f"--log_path={tmp_path / 'log.json'}", *SMALL_MODEL,
             "--max_steps=30", "--print_freq=10")  # fmt: skip
    text = show(*flags)
    assert "30/30" in text
    assert "lr 0.003" in text
    assert "Epoch:[" not in text
    assert "full ndcg@10 0." in text
    piped = harness.forked("-m", "bert4rec.scripts.main", *flags).stdout
    assert "30/30" not in piped
    assert piped.count("Epoch:[") == 4  # the first step and every tenth
    assert "\r" not in piped


def read_ranks(path):
    is_csv = path.suffix == ".csv"
    table = pyarrow.csv.read_csv(path) if is_csv else pyarrow.parquet.read_table(path)
    return {
        name: column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_ranks_of_users(program, loaded, dataset, tmp_path, suffix):
    path = tmp_path / "new" / f"ranks{suffix}"
    data = program("--mode=test", *loaded, f"--ranks_file={path}")[-1]["data"]
    found, sequences = read_ranks(path), read_sequences(dataset)
    items = read_item_map(dataset).raw.to_pylist()
    assert found["user"] == read_user_map(dataset).raw.to_pylist()
    assert found["item"] == [items[item - 1] for item in sequences.test_items]
    assert found["history_length"] == (sequences.lengths - 1).tolist()
    for ranking in RANKINGS:
        column = "rank" if ranking == "full" else f"rank_{ranking}"
        ranks = np.array(found[column if "full" in ranking else f"{column}_5"])
        assert (1 / ranks).mean() == pytest.approx(data[f"test_{ranking}_mrr"])
        assert (ranks <= 5).mean() == pytest.approx(data[f"test_{ranking}_hr@5"])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_lists_of_users(program, loaded, dataset, tmp_path, capsys):
    lists, ranks = tmp_path / "lists.csv", tmp_path / "ranks.csv"
    flags = (f"--lists_file={lists}", f"--ranks_file={ranks}", "--top_k=5")
    data = program("--mode=test", *loaded, *flags)[-1]["data"]
    assert f"diversity@5 {data['test_diversity@5']:.4f}\n" in capsys.readouterr().out
    found, sequences = read_ranks(lists), read_sequences(dataset)
    users, items = read_user_map(dataset).raw.to_pylist(), read_item_map(dataset).raw.to_pylist()
    assert found["user_id"] == [user for user in users for _ in range(5)]
    assert found["rank"] == [1, 2, 3, 4, 5] * NUM_USERS
    places = {(user, item): rank for user, item, rank in zip(*found.values(), strict=True)}
    ranked = read_ranks(ranks)
    assert [places.get(pair, 6) for pair in zip(ranked["user"], ranked["item"], strict=True)] == [
        min(rank, 6) for rank in ranked["rank"]
    ]
    met = {item: set() for item in items}
    for number, user in enumerate(users):
        for item in sequences[number][:-2].tolist():
            met[items[item - 1]].add(user)
    assert data["test_coverage@5"] == len(set(found["item_id"])) / NUM_ITEMS
    novelty = [-math.log2(max(len(met[item]), 1) / NUM_USERS) for item in found["item_id"]]
    assert data["test_novelty@5"] == pytest.approx(np.mean(novelty))
    cosines = [
        len(met[a] & met[b]) / math.sqrt(max(len(met[a]), 1) * max(len(met[b]), 1))
        for start in range(0, len(found["rank"]), 5)
        for a, b in itertools.combinations(found["item_id"][start : start + 5], 2)
    ]
    assert data["test_diversity@5"] == pytest.approx(1 - np.mean(cosines))


def test_lists_of_the_whole_catalogue_take_little_memory(tmp_path):
    """The pairs of items of all lists, as 64-bit numbers, would be 17 GiB."""
    generator, users, items = np.random.default_rng(0), 600, 2000
    drawn = (generator.choice(items, 20, replace=False) for _ in range(users))
    rows = [f"{user} {item}" for user, own in enumerate(drawn, 1) for item in own + 1]
    (tmp_path / "ratings.txt").write_text("\n".join(rows) + "\n")
    files = {name: tmp_path / f"{name}.parquet" for name in ("lists", "ranks")}
    made = tmp_path / "made"
    assert amazon.main(["", f"--input={tmp_path / 'ratings.txt'}", f"--output={made}"]) == 0
    sequences = read_sequences(made)
    flags = (f"--dataset_path={made}", *SMALL_MODEL, "--max_steps=1", "--baselines=")
    alone = peak_mib(tmp_path, *flags)
    named = (f"--{name}_file={file}" for name, file in files.items())
    peak = peak_mib(tmp_path, *flags, f"--top_k={sequences.num_items}", *named)
    of_lists = users * sequences.num_items * 8 / 2**20
    assert peak - alone < 3 * of_lists + 200, (peak, alone)
    found = read_ranks(files["lists"])
    known = [len(set(sequences[user][:-1].tolist())) for user in range(users)]
    assert len(found["rank"]) == users * sequences.num_items - sum(known)
    assert len(read_ranks(files["ranks"])["rank"]) == users

    # Every list is all that its user has not seen: the diversity by dense vectors of users.
    met = np.zeros((users, sequences.num_items))
    listed = np.ones((users, sequences.num_items))
    for user in range(users):
        met[user, sequences[user][:-2] - 1] = 1
        listed[user, sequences[user][:-1] - 1] = 0
    vectors = met / np.maximum(np.linalg.norm(met, axis=0), 1)
    cosines = vectors.T @ vectors
    np.fill_diagonal(cosines, 0)
    total = np.einsum("ui,ij,uj->", listed, cosines, listed, optimize=True)
    pairs = (listed.sum(1) * (listed.sum(1) - 1)).sum()
    name = f"test_diversity@{sequences.num_items}"
    data = harness.read_log(tmp_path / "log.json")[-1]["data"]
    assert data[name] == pytest.approx(1 - total / pairs, rel=1e-12)


def test_the_files_are_written_before_the_report(program, loaded, tmp_path, capsys):
    """An error in a table or a baseline then loses no file."""
    files = [tmp_path / name for name in ("ranks.csv", "lists.csv")]
    program("--mode=test", *loaded, f"--ranks_file={files[0]}", f"--lists_file={files[1]}")
    lines = capsys.readouterr().out.splitlines()
    told = [next(n for n, line in enumerate(lines) if str(file) in line) for file in files]
    assert max(told) < next(n for n, line in enumerate(lines) if line.startswith("metric"))


def test_users_without_enough_new_items_are_left_out_and_said_once(
    program, loaded, dataset, tmp_path, capsys
):
    path, sequences = tmp_path / "ranks.csv", read_sequences(dataset)
    flags = ("--num_eval_negatives=25", f"--ranks_file={path}")
    data = program("--mode=test", *loaded, *flags)[-1]["data"]
    new = [NUM_ITEMS - len(set(sequences[u].tolist())) for u in range(NUM_USERS)]
    few = sum(count < 25 for count in new)
    out = capsys.readouterr().out
    assert 0 < few < NUM_USERS
    assert out.count(f" {few} of {NUM_USERS} users") == 1
    ranks = read_ranks(path)
    for ranking in ("popular", "uniform"):
        of_users = ranks[f"rank_{ranking}_25"]
        kept = [rank for rank in of_users if rank is not None]
        assert [rank is None for rank in of_users] == [n < 25 for n in new]
        assert data[f"test_{ranking}_hr@5"] == pytest.approx(np.mean(np.array(kept) <= 5))
        low, high = (data[f"test_{ranking}_hr@5_{end}"] for end in ("low", "high"))
        assert low <= data[f"test_{ranking}_hr@5"] <= high
        popular = data[f"test_popularity_{ranking}_mrr"]
        assert 1 / 26 <= popular <= 1
    assert None not in ranks["rank"]


@pytest.mark.parametrize(
    ("file", "facts"), [("ranks.txt", ["ranks.txt", ".csv", ".parquet"]), ("", ["taken.csv"])]
)
@pytest.mark.parametrize("flag", ["ranks_file", "lists_file"])
def test_a_file_that_cannot_be_written(refused, dataset, tmp_path, flag, file, facts):
    folder = tmp_path / "taken.csv"
    folder.mkdir()
    said = refused(f"--dataset_path={dataset}", f"--{flag}={file or folder}")
    assert_tells(said, f"--{flag}", *facts)


def title(item: int) -> str:
    return {3: "", 4: "Bell \x1b[2J\x07 (4)", 5: f"Long {'o' * 80} (5)"}.get(item, f"Été, {item}")


@pytest.fixture(scope="module")
def titled(dataset, tmp_path_factory):
    """The prepared dataset, prepared again with titles: its fingerprint is the same."""
    root = tmp_path_factory.mktemp("titled") / "dataset"
    shutil.copytree(dataset, root)
    write_titles(root, [title(item) for item in range(1, NUM_ITEMS + 1)])
    files = Manifest.describe_files(root)
    assert fingerprint(files) == Manifest.load(dataset).fingerprint
    return root


def test_json_has_titles_if_the_dataset_has(recommend, titled, dataset, trained):
    lines = f"{raw_id(38)} {raw_id(39)}\nnobody knows\n"
    answers = [
        recommend(f"--dataset_path={root}", f"--load_checkpoint_path={trained}",
                  f"--top_k={NUM_ITEMS}", lines=lines)
        for root in (titled, dataset)
    ]  # fmt: skip
    (named, unknown), plain = answers
    titles = named.pop("titles")
    assert [named, unknown] == plain
    numbers = {raw_id(item): item for item in range(1, NUM_ITEMS + 1)}
    assert titles == [title(numbers[item]) or None for item in named["items"]]


def test_a_table_shows_history_and_titles(program, titled, dataset, trained, capsys):
    lines = f"{' '.join(raw_id(item) for item in range(3, 11))}\nnobody knows\n".encode()
    outputs = []
    for root in (titled, dataset):
        program("--mode=recommend", f"--dataset_path={root}", f"--load_checkpoint_path={trained}",
                f"--top_k={NUM_ITEMS}", "--output_format=table", model=(), stdin=lines)  # fmt: skip
        outputs.append(capsys.readouterr().out.splitlines())
    with_titles, plain = outputs
    history = ", ".join(title(item) for item in range(6, 11))
    assert with_titles[0] == f"line 1, oldest first: 3 more, {history}"
    assert with_titles[1].split() == ["rank", "title", "id", "score"]
    assert plain[1].split() == ["rank", "id", "score"]
    rows = with_titles[2 : 2 + NUM_ITEMS - 8]
    for rank, (row, without) in enumerate(zip(rows, plain[2:], strict=False), 1):
        number, *words, found_id, score = row.split()
        assert [number, found_id, score] == without.split()
        assert int(number) == rank
        assert float(score) <= 100
        assert raw_id(int(words[-1])) == found_id
    assert len({len(row) for row in with_titles[1:-3]}) == 1  # columns are aligned
    assert_tells(with_titles[-2], "line 2")


def test_a_terminal_gets_tables_that_leave_its_state_alone(titled, trained, tmp_path):
    history = tmp_path / "history"
    history.write_text(f"{raw_id(3)} {raw_id(4)} {raw_id(5)}\n")
    output = show(
        *("--mode=recommend", f"--dataset_path={titled}", f"--load_checkpoint_path={trained}"),
        *(f"--recommend_input={history}", "--top_k=2", f"--log_path={tmp_path / 'log.json'}"),
    )
    head, columns, *rows = output.split("\r\n")
    long = f"Long {'o' * 80} (5)"[:57] + "..."
    assert head == f"line 1, oldest first: {raw_id(3)}, Bell ?[2J? (4), {long}"
    assert columns.split() == ["rank", "title", "id", "score"]
    assert len(rows) == 4  # two items, an empty line, and what follows the last line
