# SPDX-License-Identifier: Apache-2.0
"""Records of results: what they hold, their files, what contradicts itself."""

import dataclasses
import json

import pytest

from benchmark.machine import cpu_kind, hardware
from benchmark.record import latest, read_records, write_records
from tests.benchmark.conftest import record


def test_a_record_states_percentiles_machine_and_code():
    made = record(*range(11), failed=2)
    assert (made.value, made.p10, made.p90) == (5.0, 1.0, 9.0)
    assert (made.repeats, made.failed) == (13, 2)
    assert made.samples == list(range(11))
    assert made.hardware == hardware()
    assert made.hardware["cores"] >= 1
    assert {"python", "numpy"} <= set(made.versions)
    assert made.commit


def test_config_hash_depends_on_the_settings_alone():
    configs = ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3})
    first, again, other = (record(1.0, config=config).config_hash for config in configs)
    assert first == again != other


def test_files_round_trip_and_the_last_record_of_a_key_counts(tmp_path):
    path = tmp_path / "new" / "speed.jsonl"
    write_records(path, [record(1.0)])
    write_records(path, [record(2.0), record(failed=3, rows=11)])
    records = read_records(path)
    assert [r.value for r in records] == [1.0, 2.0, None]
    assert [r.value for r in latest(records)] == [2.0, None]


@pytest.mark.parametrize("line", ["{", "[1]", "{}", json.dumps({"benchmark": "x"})])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "speed.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(record(1.0))) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"speed\.jsonl:2"):
        read_records(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"direction": "up"}, "direction 'up'"),
        ({"failed": 4}, "failed 4 of 3"),
        ({"value": None}, "value None with 0 of 3"),
        ({"value": 9.0}, "outside p10"),
        ({"samples": [1.0]}, "1 samples of 3"),
        ({"threshold": "-1%"}, "threshold '-1%'"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(record(1.0, 2.0, 3.0), **changes)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fpu avx2 fma", "AVX2"),
        ("fpu avx2 fma avx512f avx512bw", "AVX-512"),
        ("avx2 fma avx512f avx512bw avx512_bf16", "AVX-512 BF16"),
        ("avx2 fma avx512f avx512bw avx512_bf16 amx_tile amx_bf16 amx_int8", "AMX"),
        ("fpu sse2", "x86-64"),
    ],
)
def test_the_kind_of_cpu_is_told_by_its_flags(flags, kind):
    assert cpu_kind(f"model name\t: some\nflags\t\t: {flags}\n") == kind


def test_the_spread_of_a_median_shrinks_with_the_runs():
    values = [100.0, 90.0, 110.0, 105.0, 95.0]
    assert record(*values).spread > record(*values * 10).spread > 0
    assert record(3.0).spread == 0
    assert record(*[3.0] * 5).spread == 0
