# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from benchmark import compare
from benchmark.record import make_record, write_records


def record(*samples, metric="rows_per_s", direction="higher", failed=0, rows=10):
    config = {"rows": rows}
    return make_record(
        "speed",
        "ours",
        metric,
        samples,
        unit="",
        direction=direction,
        config=config,
        failed=failed,
    )


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        (record(90.0), record(100.0), "worse"),
        (record(110.0), record(100.0), "better"),
        (record(96.0), record(100.0), "balanced"),
        (record(110.0, direction="lower"), record(100.0, direction="lower"), "worse"),
        (record(90.0, direction="lower"), record(100.0, direction="lower"), "better"),
        # Twice the spread is about 0.17 here: 10% is within the noise of either side, 21% is not.
        (record(80.0, 90.0, 100.0), record(100.0), "balanced"),
        (record(90.0), record(90.0, 100.0, 110.0), "balanced"),
        (record(79.0), record(90.0, 100.0, 110.0), "worse"),
        (record(50.0, failed=2), record(100.0), "unreliable"),
        (record(50.0, failed=1), record(100.0), "worse"),
        (record(failed=3), record(100.0), "unreliable"),
        (record(0.0), record(0.0), "balanced"),
    ],
)
def test_verdicts(new, old, verdict):
    assert compare.compare_records(new, old, 0.05).verdict == verdict


def test_only_equal_settings_and_hardware_are_compared():
    other = dataclasses.replace(record(1.0), hardware={"cpu": "another"})
    assert compare.compare([record(1.0, rows=11), other], [record(9.0)], 0.05) == []
    assert len(compare.compare([record(1.0), record(9.0)], [record(9.0)], 0.05)) == 1


def test_a_planted_regression_fails_the_command(tmp_path, capsys):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write_records(old, [record(100.0, 101.0, 102.0), record(5.0, metric="peak", direction="lower")])
    write_records(new, [record(88.0, 89.0, 90.0), record(5.0, metric="peak", direction="lower")])
    assert compare.main([str(new), "--against", str(old)]) == 1
    out = capsys.readouterr().out
    assert "worse      speed ours rows_per_s" in out
    assert "balanced   speed ours peak" in out
    assert compare.main([str(new), "--against", str(old), "--threshold", "0.2"]) == 0
    assert compare.main([str(old), "--against", str(new)]) == 0


def test_baselines_are_accepted_and_then_held(tmp_path, capsys):
    baselines, new = tmp_path / "baselines.json", tmp_path / "new.jsonl"
    write_records(new, [record(100.0)])
    arguments = [str(new), "--baselines", str(baselines)]
    assert compare.main(arguments) == 2
    assert "nothing to compare" in capsys.readouterr().err
    assert compare.main([*arguments, "--accept"]) == 0
    assert compare.main(arguments) == 0
    write_records(new, [record(50.0)])
    assert compare.main(arguments) == 1
    write_records(new, [record(1.0, rows=3)])
    assert compare.main([*arguments, "--accept"]) == 0
    assert [r.value for r in compare.read_baselines(baselines)] == [50.0, 1.0]


def test_a_missing_results_file_is_an_error(tmp_path, capsys):
    assert compare.main([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
