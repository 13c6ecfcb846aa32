# SPDX-License-Identifier: Apache-2.0
"""The kernels of each kind of processor read the same values as the reference engine."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from preproc.clicks.job import semantics_of, semantics_of_schema
from preproc.clicks.serving.feature_file import write_feature_file
from recsys.data.manifest import QUARANTINE_FILE, Manifest
from tests import harness
from tests.preproc.clicks.rows import assert_same, good_text, run, without_labels, write_days
from tests.preproc.clicks.schema_log import write_schema
from tests.tools import needs

COLUMNS = [
    {"name": "click", "role": "label"},
    {"name": "text", "role": "categorical", "type": "string"},
    {"name": "hashed", "role": "categorical", "type": "string", "buckets": 1000},
    {"name": "price", "role": "numerical", "type": "float"},
    {"name": "count", "role": "numerical", "type": "int"},
]
NUMBERS = [
    *("0", "-0", "7", ".5", "5.", "-.5", "12.34", "0.000001", "1234567", "12345678", "-1234567"),
    *("123456.7", "1234567.8", "123456789", "-12345678.25", "1e3", "2.5E-7", "0.1", "00012.50"),
    *("", ".", "-", "1.2.3", "1-2", "--1", "1 ", "12345x78", "1e", "1e39", "٣"),
]
COUNTS = ["0", "-1", "12345678", "-12345678", "123456789", "-2147483648", "", "-", "1.0", "1x"]


def lines(count: int) -> list[str]:
    """Rows with texts of every length up to 40 bytes, some of which are not ASCII."""
    rng = random.Random(1)
    texts = ["".join(rng.choices("ab", k=length)) for length in range(41) for _ in range(4)]
    texts += ["x" * before + odd for before in range(18) for odd in ("é", "\x7f", "\x01", "日本")]
    return [
        ";".join(["01"[i % 2], *rng.choices(texts, k=2), rng.choice(NUMBERS), rng.choice(COUNTS)])
        for i in range(count)
    ]


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("quote", ['"', "none"])
def test_each_kind_reads_what_the_reference_reads(tmp_path, quote):
    text = lines(1500)
    if quote != "none":  # some fields in quotes
        text += [";".join(f'"{field}"' for field in line.split(";")) for line in lines(300)]
    (tmp_path / "log").write_text("\n".join(text))
    schema = write_schema(
        tmp_path,
        dialect={"header": False, "delimiter": ";", "quote": quote},
        label={"column": "click"},
        columns=COLUMNS,
        defaults={"frequency_limit": 1},
        split={"rows": [500, 0, -1]},
    )
    semantics = semantics_of_schema(schema, {"shuffle_seed": None})
    arguments = {"schema": schema, "semantics": semantics, "engine": "reference"}
    expected = run(tmp_path / "log", tmp_path / "expected", **arguments)
    rejected = (tmp_path / "expected" / QUARANTINE_FILE).read_bytes()
    options = (f"--schema={schema}", "--shuffle_seed=none", "--max_bad_fraction=1")
    for output in made_by_each_kind(tmp_path, tmp_path / "log", *options):
        assert_same(Manifest.load(output), expected)
        assert (output / QUARANTINE_FILE).read_bytes() == rejected


@needs("compiled Criteo kernel")
def test_each_kind_reads_a_criteo_log(tmp_path):
    rng = random.Random(2)
    lines = good_text(900, seed=3).splitlines()
    for number in range(0, len(lines), 3):
        fields = lines[number].split(b"\t")
        for _ in range(rng.choice((1, 1, 5))):
            values = [*COUNTS, "7", "99999999", "-99999999", "+1", "0x1", "/", ":", "1-", "é"]
            fields[rng.randrange(1, 14)] = rng.choice(values).encode()
        if number % 9 == 0:
            values = ["g", "123456789", "AbC", "@", "`", "0 "]
            fields[rng.randrange(14, 40)] = rng.choice(values).encode()
        lines[number] = b"\t".join(fields)
    (tmp_path / "logs").mkdir()
    for day in range(2):
        (tmp_path / "logs" / f"day_{day}").write_bytes(b"\n".join(lines[day::2]))
    semantics = semantics_of("dlrm")
    expected = run(tmp_path / "logs", tmp_path / "expected", "reference", semantics=semantics)
    assert 100 < sum(expected.rows.values()) < 850
    rejected = (tmp_path / "expected" / QUARANTINE_FILE).read_bytes()
    options = ("--preset=dlrm", "--max_bad_fraction=1")
    for output in made_by_each_kind(tmp_path, tmp_path / "logs", *options):
        assert_same(Manifest.load(output), expected)
        assert (output / QUARANTINE_FILE).read_bytes() == rejected


TRANSFORMED = """
import sys, xxhash
from pathlib import Path
from preproc.clicks.serving.line_transform import LineTransform
with LineTransform(Path(sys.argv[1])) as transform:
    features = transform.transform(Path(sys.argv[2]).read_bytes().splitlines())
print(xxhash.xxh64(features.ids.tobytes() + features.numerical.tobytes()).hexdigest())
"""


@needs("compiled Criteo kernel")
def test_each_kind_transforms_lines_without_labels(tmp_path):
    write_days(tmp_path / "logs", rows=300)
    run(tmp_path / "logs", tmp_path / "made", "reference", semantics=semantics_of("dlrm"))
    write_feature_file(tmp_path / "made", tmp_path / "features.bin", "float16")
    (tmp_path / "lines").write_bytes(without_labels((tmp_path / "logs" / "day_0").read_bytes()))
    arguments = ("-c", TRANSFORMED, tmp_path / "features.bin", tmp_path / "lines")
    printed = {
        kind: harness.python(*arguments, RECSYS_CPU_KERNELS=kind).stdout
        for kind in ("portable", "avx2", "avx512")
    }
    assert len(set(printed.values())) == 1, printed


def made_by_each_kind(folder: Path, log: Path, *options: str) -> Iterator[Path]:
    """Yields the datasets that the kernels of each kind make of a log."""
    for kind in ("portable", "avx2", "avx512"):
        output = folder / kind
        program = ("-m", "preproc.clicks", f"--input={log}", f"--output={output}", *options)
        harness.python(*program, RECSYS_CPU_KERNELS=kind)
        yield output
