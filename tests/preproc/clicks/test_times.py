# SPDX-License-Identifier: Apache-2.0
"""Times, and splits by what a row holds."""

import csv
import datetime
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash

from preproc.clicks import __main__ as program
from preproc.clicks.rules import shuffle_keys
from preproc.clicks.schema.time_rule import TimeRule
from preproc.files.errors import PreprocError
from tests.dlrm.conftest import DlrmProgram
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import assert_same
from tests.preproc.clicks.schema_log import columns_of, prepare, write_schema
from tests.tools import needs

FORMATS = {
    "iso8601": lambda t: t.isoformat(),
    "unix_s": lambda t: f"{t.timestamp():.3f}",
    "unix_ms": lambda t: str(round(t.timestamp() * 1000)),
    "unix_ns": lambda t: str(round(t.timestamp() * 1000) * 10**6),
    "%d.%m.%y %H:%M:%S": lambda t: t.strftime("%d.%m.%y %H:%M:%S"),
}
ENGINES_HERE = pytest.mark.parametrize(
    "engine", ["reference", pytest.param("native", marks=needs("compiled Criteo kernel"))]
)
UTC = datetime.UTC
START = datetime.datetime(2026, 2, 26, tzinfo=UTC)


def times(count: int, seed: int = 0) -> list[datetime.datetime]:
    """Times of a week in their order, some of them twice."""
    rng = random.Random(seed)
    seconds = sorted(rng.randrange(7 * 86400) for _ in range(count))
    return [START + datetime.timedelta(seconds=s) for s in seconds]


def write(folder: Path, lines: list[str], **changes: object) -> tuple[Path, Path]:
    """Writes a log of time, user, item, label and its schema."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.csv").write_text("\n".join(["ts,user,item,click", *lines]) + "\n")
    values = {
        "dialect": {"delimiter": ","},
        "label": {"column": "click"},
        "columns": [
            {"name": "user", "role": "ignored"},
            {"name": "ts", "role": "timestamp", "features": ["weekend", "hour", "weekday"]},
            {"name": "item", "role": "categorical", "type": "string"},
        ],
        "split": {"time": {"validation": "2026-03-03", "test": "2026-03-04T12:00"}},
        "defaults": {},
    }
    return folder / "log.csv", write_schema(folder, **values | changes)


def lines_of(moments: list[datetime.datetime], form="iso8601", seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [
        f"{FORMATS[form](t)},u{rng.randrange(40)},i{int(rng.paretovariate(0.8)) % 90},"
        f"{rng.randrange(2)}"
        for t in moments
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_features_of_times_and_splits_by_them(form, tmp_path):
    """In a zone east of UTC, of rows that are not in the order of their times."""
    moments = times(900)
    random.Random(3).shuffle(moments)
    columns = [
        {
            **{"name": "ts", "role": "timestamp", "format": form, "time_zone": "+05:30"},
            "features": ["weekend", "hour", "weekday"],
        },
        {"name": ["user", "item"], "role": "categorical", "type": "string"},
    ]
    if form.startswith("%"):  # which says no zone
        local = [t.astimezone(datetime.timezone(datetime.timedelta(minutes=330))) for t in moments]
        lines = lines_of(local, form)
    else:
        lines = lines_of(moments, form)
    log, schema = write(tmp_path, lines, columns=columns)
    made = prepare(log, schema, tmp_path / "made", engine="reference")
    local = [t + datetime.timedelta(minutes=330) for t in moments]
    cut = datetime.datetime(2026, 3, 3, tzinfo=UTC), datetime.datetime(2026, 3, 4, 12, tzinfo=UTC)
    split_of = [(t >= cut[0]) + (t >= cut[1]) for t in local]
    assert list(made.rows.values()) == [split_of.count(i) for i in range(3)]
    spec, reader = columns_of(tmp_path / "made", "validation")
    names = ["ts_hour", "ts_weekday", "ts_weekend", "user", "item"]
    assert [f.name for f in spec.categorical] == names
    stored = reader.read(0, reader.num_rows).categorical
    wanted = [t for t, split in zip(local, split_of, strict=True) if split == 1]
    for ids, of in zip(
        stored, (lambda t: t.hour, lambda t: t.weekday(), lambda t: t.weekday() >= 5), strict=False
    ):
        pairs = set(zip(ids.tolist(), map(of, wanted), strict=True))
        # One id a value; those that training rows do not have are 0 together.
        assert len({i for i, _ in pairs}) == len({v for i, v in pairs if i}) + (0 in dict(pairs))
    train = [t for t, split in zip(local, split_of, strict=True) if split == 0]
    kept = {h for h in range(24) if sum(t.hour == h for t in train) >= 2}
    assert spec.categorical[0].cardinality == len(kept) + 1


def row_value(line: str) -> int:
    """Adds up SplitMix64 of what the columns say, each from the hash of its name."""
    time, user, item, click = line.split(",")
    moment = TimeRule("iso8601").milliseconds(time.encode())
    said = {"ts": moment, "item": xxhash.xxh64_intdigest(item.encode()), "click": int(click)}
    if user not in ("", "u7"):
        said["user"] = xxhash.xxh64_intdigest(user.encode())
    return (
        sum(
            int(
                shuffle_keys(xxhash.xxh64_intdigest(name.encode()), np.array([value], np.uint64))[0]
            )
            for name, value in said.items()
        )
        % 2**64
    )


@pytest.mark.parametrize("by_user", [False, True])
def test_random_splits_are_by_the_hash_of_a_row_or_its_group(by_user, tmp_path):
    """Rows without a user are split as rows, equal ones alike; refused rows count nowhere."""
    lines = lines_of(times(2000))
    bad = ["2026-02-30", "2200-01-01", "1969-12-31T23:59:59Z", "2026-03-01T24:00", "2026-03-01 "]
    refused = [f"{time},u1,i{number},1" for number, time in enumerate(bad)]
    lines[50:90] = [f"2026-03-01T10:00:00.999-05,,i{number % 7},1" for number in range(40)]
    columns = [
        {"name": "user", "role": "ignored", "group": True, "missing": ["u7"]},
        {"name": "ts", "role": "timestamp", "features": ["hour"]},
        {"name": "item", "role": "categorical", "type": "string"},
    ]
    fractions, seed = [0.7, 0.1, 0.2], 2**64 - 1
    split = {"random": {"fractions": fractions, "seed": seed} | ({"by": "user"} if by_user else {})}
    log, schema = write(tmp_path, lines + refused, split=split, columns=columns)
    made = prepare(log, schema, tmp_path / "made", engine="reference")
    assert made.rejected["time"] == len(refused)
    users = [line.split(",")[1] for line in lines]
    hashes = [
        xxhash.xxh64_intdigest(user.encode())
        if by_user and user not in ("", "u7")
        else row_value(line)
        for user, line in zip(users, lines, strict=True)
    ]
    hashes = np.array(hashes, np.uint64)
    values = shuffle_keys(seed, hashes) >> np.uint64(1)
    ends = [round(sum(fractions[: i + 1]) * 2**63) for i in range(2)]
    counts = np.bincount((values >= ends[0]).astype(int) + (values >= ends[1]), minlength=3)
    assert list(made.rows.values()) == counts.tolist()


@needs("compiled Criteo kernel")
def test_odd_times_are_read_alike(tmp_path):
    """Of times with a few bytes changed, in a column of each format; one of a row is odd."""
    rng = random.Random(5)
    forms = FORMATS | {"unix_us": lambda t: str(round(t.timestamp() * 10**6))}
    for pattern in ("%Y%m%d%H", "%m/%d/%Y %I:%M:%S %p", "T%Y-%m-%dT%H:%M"):
        forms[pattern] = lambda t, pattern=pattern: t.strftime(pattern)
    lines = []
    for number, moment in enumerate(times(600 * len(forms))):
        time = moment.replace(year=rng.choice([1970, 1999, 2000, 2026, 2199]))
        texts = [spelled(time) for spelled in forms.values()]
        text, column = texts[number % len(forms)], number % len(forms)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(text) + 1)
            piece = rng.choice(["0", "9", "2", "-", "+", ":", ".", "Z", " ", "T", "é", "30"])
            text = text[:at] + piece + text[at + rng.randrange(2) :]
        lines.append(",".join([*texts[:column], text, *texts[column + 1 :], "i", "1"]))
    names = [f"t{number}" for number in range(len(forms))]
    (tmp_path / "log.csv").write_text("\n".join([",".join([*names, "item", "click"]), *lines]))
    of_time = {"role": "timestamp", "time_zone": "-03:30", "features": ["hour", "weekday"]}
    columns = [
        of_time | {"name": name, "format": form} for name, form in zip(names, forms, strict=True)
    ]
    columns.append({"name": "item", "role": "categorical", "type": "string"})
    _, schema = write(tmp_path / "schema", [], columns=columns, split={"fractions": [1, 0, 0]})
    expected = prepare(tmp_path / "log.csv", schema, tmp_path / "reference", engine="reference")
    assert expected.rejected["time"] > 50 * len(forms)
    assert expected.rejected["encoding"] > 10 * len(forms)
    assert_same(prepare(tmp_path / "log.csv", schema, tmp_path / "made"), expected)


def test_times_are_those_of_the_standard_library():
    rng = random.Random(1)
    for _ in range(3000):
        moment = START + datetime.timedelta(milliseconds=rng.randrange(-(10**12), 5 * 10**12))
        zone = datetime.timezone(datetime.timedelta(minutes=rng.randrange(-1439, 1440)))
        local = moment.astimezone(zone)
        exact = round(
            (moment - datetime.datetime(1970, 1, 1, tzinfo=UTC))
            / datetime.timedelta(milliseconds=1)
        )
        assert TimeRule("iso8601").milliseconds(local.isoformat().encode()) == exact
        minutes = int(local.utcoffset() / datetime.timedelta(minutes=1))
        text = local.strftime("%d/%m/%Y %H:%M:%S").encode()
        rule = TimeRule("%d/%m/%Y %H:%M:%S", minutes, ("hour", "weekday", "weekend"))
        assert rule.milliseconds(text) == exact // 1000 * 1000
        text = f"{local.month}/{local.day}/{local.year} {local.strftime('%I:%M %p').lstrip('0')}"
        whole_minutes = (exact + minutes * 60_000) // 60_000 * 60_000 - minutes * 60_000
        rule_of_halves = TimeRule("%m/%d/%Y %I:%M %p", minutes)
        assert rule_of_halves.milliseconds(text.encode()) == whole_minutes
        assert rule.categories(exact) == (local.hour, local.weekday(), local.weekday() >= 5)


@ENGINES_HERE
def test_a_split_without_rows_says_what_times_there_are(engine, tmp_path):
    split = {"time": {"validation": "2026-03-03", "test": "2026-04-01"}}
    moments = times(300)
    log, schema = write(tmp_path, lines_of(moments), split=split)
    ends = (f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in (moments[0], moments[-1]))
    cuts = "2026-03-03T00:00:00", "2026-04-01T00:00:00"
    with refusal("ts", "test", *cuts, *ends, kind=PreprocError):
        prepare(log, schema, tmp_path / "made", engine=engine)


@ENGINES_HERE
def test_a_row_without_the_time_that_splits_is_refused(engine, tmp_path):
    lines = lines_of(times(300))
    lines[200] = ",u1,i1,0"
    log, schema = write(tmp_path, lines)
    with refusal("log.csv", "line 202", "ts", "(time)", "iso8601", kind=PreprocError):
        prepare(log, schema, tmp_path / "made", engine=engine, max_bad_fraction=0)


@ENGINES_HERE
def test_dictionaries_of_a_dataset_give_new_rows_the_same_bytes(engine, tmp_path):
    """Also of a dataset that was split by time; groups are kept."""
    columns = [
        {"name": "user", "role": "categorical", "type": "string", "group": True},
        {"name": "ts", "role": "timestamp", "features": ["hour"]},
        {"name": "item", "role": "ignored"},
    ]
    lines = lines_of(times(2000))
    log, schema = write(tmp_path, lines, columns=columns)
    made = prepare(log, schema, tmp_path / "made", engine="reference")
    (tmp_path / "new.csv").write_text(
        "\n".join(["ts,user,item,click", *lines[-made.rows["test"] :]]) + "\n"
    )
    flags = [f"--input={tmp_path / 'new.csv'}", f"--output={tmp_path / 'new'}", "--progress=none"]
    flags += [f"--dictionaries={tmp_path / 'made'}", f"--engine={engine}"]
    assert program.main(["prepare", *flags]) == 0
    # Without a label neither the time that split nor the group is needed, if they are no features.
    (tmp_path / "bare.csv").write_text("user,ts\nu1,2026-03-01\n")
    flags[:2] = [f"--input={tmp_path / 'bare.csv'}", f"--output={tmp_path / 'bare'}"]
    assert program.main(["prepare", *flags, "--unlabelled"]) == 0
    assert sorted(path.name for path in (tmp_path / "new" / "test").iterdir()) == [
        *("cat_0.bin", "cat_1.bin", "group.bin", "label.bin")
    ]
    for path in (tmp_path / "made" / "test").iterdir():
        assert (tmp_path / "new" / "test" / path.name).read_bytes() == path.read_bytes(), path.name


@needs("compiled Criteo kernel")
def test_the_group_of_a_schema_is_that_of_gauc(tmp_path):
    """Users are ignored as a feature: rare ones have a group too, rows without a user none."""
    rng = random.Random(8)
    moments = times(3000)
    users = [rng.choice(["", f"u{rng.randrange(60)}", f"once{i}"]) for i in range(len(moments))]
    lines = []
    for moment, user in zip(moments, users, strict=True):
        item = rng.randrange(20)
        lines.append(f"{moment.isoformat()},{user},i{item},{int(rng.random() < item / 20)}")
    columns = [
        {"name": "user", "role": "ignored", "group": True},
        {"name": "ts", "role": "timestamp", "features": ["hour"]},
        {"name": "item", "role": "categorical", "type": "string"},
    ]
    log, schema = write(tmp_path, lines, columns=columns)
    made = prepare(log, schema, tmp_path / "made")
    dlrm, folder = DlrmProgram(tmp_path), tmp_path / "run"
    dlrm.train(tmp_path / "made", folder, "--lr=1", "--epochs=2")
    values = dlrm.test(tmp_path / "made", folder, "--gauc_by=user")
    first = made.rows["train"] + made.rows["validation"]
    of_test, labels = users[first:], [int(line[-1]) for line in lines[first:]]
    assert values["gauc_rows_left_out"] == of_test.count("")
    clicks = {user: set() for user in of_test if user}
    for user, label in zip(of_test, labels, strict=True):
        if user:
            clicks[user].add(label)
    assert values["gauc_groups"] == sum(len(kinds) == 2 for kinds in clicks.values())
    assert values["gauc"] > 0.6
    path = tmp_path / "predictions.csv"
    dlrm(
        *(f"--dataset={tmp_path / 'made'}", f"--load_checkpoint_path={folder}"),
        *("--mode=predict", f"--predictions={path}"),
    )
    with path.open(newline="") as file:
        predicted = list(csv.DictReader(file))
    assert len(predicted) == made.rows["test"]
    assert {(row["file"], row["line"]) for row in predicted} == {("", "")}
    flags = ("--mode=test", f"--dataset={tmp_path / 'made'}", f"--load_checkpoint_path={folder}")
    assert_tells(dlrm.refused(*flags, "--gauc_by=shop"), "--gauc_by", "shop", "user")


@pytest.mark.parametrize(
    ("form", "written", "told"),
    [
        ("unix_s", "%Y%m%d", True),
        ("unix_us", "%Y%m%d%H%M%S", True),
        ("unix_ms", "unix_s", True),
        ("unix_ns", "unix_us", True),
        ("unix_s", "unix_s", False),
        ("%Y%m%d", "%Y%m%d", False),
    ],
)
def test_times_that_another_unit_puts_in_1970_are_told(form, written, told, tmp_path, capfd):
    per_second = {"unix_s": 1, "unix_us": 10**6}.get(written, 0)
    texts = [
        str(int(t.timestamp()) * per_second) if per_second else t.strftime(written)
        for t in times(50)
    ]
    lines = [f"{text},u,i{n % 3},{n % 2}" for n, text in enumerate(texts)]
    columns = [
        {"name": "user", "role": "ignored"},
        {"name": "ts", "role": "timestamp", "format": form, "features": ["hour"]},
        {"name": "item", "role": "categorical", "type": "string"},
    ]
    log, schema = write(tmp_path, lines, columns=columns, split={"fractions": [1, 0, 0]})
    prepare(log, schema, tmp_path / "made", engine="reference", progress="auto")
    assert ("ts: " in capfd.readouterr().err) == told
