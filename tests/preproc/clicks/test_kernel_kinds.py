# SPDX-License-Identifier: Apache-2.0
"""The kernels of each kind of processor read the same values as the reference engine."""

import random

import pytest

from preproc.clicks.job import semantics_of_schema
from recsys.data.manifest import QUARANTINE_FILE, Manifest
from tests import harness
from tests.preproc.clicks.rows import assert_same, run
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
    for kind in ("portable", "avx2", "avx512"):
        output = tmp_path / kind
        flags = (f"--input={tmp_path / 'log'}", f"--output={output}", f"--schema={schema}")
        options = ("--shuffle_seed=none", "--max_bad_fraction=1")
        program = ("-m", "preproc.clicks", *flags, *options)
        harness.python(*program, RECSYS_CPU_KERNELS=kind)
        assert_same(Manifest.load(output), expected)
        assert (output / QUARANTINE_FILE).read_bytes() == rejected
