# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import pytest

from benchmark.record import hardware, latest, make_record, read_records, write_records


def record(samples=(1.0, 2.0, 3.0), **changes):
    options = {"unit": "rows/s", "direction": "higher", "config": {"rows": 10}} | changes
    return make_record("speed", "ours", "rows_per_s", samples, **options)


def test_a_record_states_percentiles_machine_and_code():
    made = record(tuple(range(11)), failed=2)
    assert (made.value, made.p10, made.p90) == (5.0, 1.0, 9.0)
    assert made.p50 == made.value
    assert (made.repeats, made.failed) == (13, 2)
    assert made.spread == pytest.approx(0.8)
    assert made.hardware == hardware()
    assert made.hardware["cores"] >= 1
    assert {"python", "numpy"} <= set(made.versions)
    assert made.commit


def test_config_hash_depends_on_the_settings_alone():
    assert (
        record(config={"a": 1, "b": 2}).config_hash == record(config={"b": 2, "a": 1}).config_hash
    )
    assert record(config={"a": 1}).config_hash != record(config={"a": 2}).config_hash


def test_files_round_trip_and_the_last_record_of_a_key_counts(tmp_path):
    path = tmp_path / "new" / "speed.jsonl"
    write_records(path, [record((1.0,))])
    write_records(path, [record((2.0,)), record((), failed=3, config={"rows": 11})])
    records = read_records(path)
    assert [r.value for r in records] == [1.0, 2.0, None]
    assert [r.value for r in latest(records)] == [2.0, None]


@pytest.mark.parametrize("line", ["{", "[1]", "{}", json.dumps({"benchmark": "x"})])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "speed.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(record())) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"speed\.jsonl:2"):
        read_records(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.jsonl"):
        read_records(tmp_path / "nothing.jsonl")
