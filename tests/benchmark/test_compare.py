# SPDX-License-Identifier: Apache-2.0
"""Verdicts on changes: of records, of runs in turns, against the base metrics."""

import dataclasses

import numpy as np
import pytest

from benchmark import compare
from benchmark.record import read_records, write_records
from tests.benchmark.conftest import record
from tests.harness import assert_tells


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        (record(90.0), record(100.0), "worse"),
        (record(110.0), record(100.0), "better"),
        (record(96.0), record(100.0), "balanced"),
        (record(110.0, direction="lower"), record(100.0, direction="lower"), "worse"),
        (record(90.0, direction="lower"), record(100.0, direction="lower"), "better"),
        (record(0.796, threshold="0.001"), record(0.798, threshold="0.001"), "worse"),
        (record(0.7975, threshold="0.001"), record(0.798, threshold="0.001"), "balanced"),
        # Runs that scatter by 10% say nothing about a change of 10%, and much about one of 40%.
        (record(80.0, 90.0, 100.0), record(100.0), "balanced"),
        (record(90.0), record(90.0, 100.0, 110.0), "balanced"),
        (record(60.0), record(90.0, 100.0, 110.0), "worse"),
        (record(50.0, failed=2), record(100.0), "unreliable"),
        (record(50.0, failed=1), record(100.0), "worse"),
        (record(failed=3), record(100.0), "unreliable"),
        (record(0.0), record(0.0), "balanced"),
    ],
)
def test_verdicts(new, old, verdict):
    assert compare.compare_records(new, old).verdict == verdict


def test_runs_in_turns_show_a_change_that_the_drift_of_the_machine_hides():
    drift = np.array([1.0, 1.3, 0.8, 1.2, 0.9])
    new, old = 95 * drift, 100 * drift
    records = record(*new, threshold="3%"), record(*old, threshold="3%")
    assert compare.compare_records(*records).verdict == "balanced"
    pairs = list(zip(new, old, strict=True))
    assert compare.compare_runs(*records, pairs).verdict == "worse"
    same = [(value, value * (1 + noise)) for value, noise in
            zip(old, (0.01, -0.01, 0.0, 0.02, -0.02), strict=True)]  # fmt: skip
    assert compare.compare_runs(*records, same).verdict == "balanced"
    assert compare.compare_runs(*records, []).verdict == "unreliable"


def test_a_few_noisy_pairs_prove_nothing_and_many_do():
    old = np.full(30, 100.0)
    new = old + np.resize([12.6, 11.0, 14.0, 2.0, 7.0], 30)
    for pairs, verdict in ((5, "balanced"), (30, "better")):
        records = record(*new[:pairs], threshold="3%"), record(*old[:pairs], threshold="3%")
        values = list(zip(new[:pairs], old[:pairs], strict=True))
        comparison = compare.compare_runs(*records, values)
        assert (comparison.verdict, comparison.is_noisy) == (verdict, True)
    exact = compare.compare_runs(*records, [(94.0, 100.0)] * 3)
    assert (exact.verdict, exact.is_noisy) == ("worse", False)


@pytest.mark.parametrize(
    "hardware", [{"cpu": "another"}, {"cpu_kind": "another"}, {"cores": 96}, {"gpu": "H200"}]
)
def test_only_equal_settings_and_hardware_are_compared(hardware):
    other = dataclasses.replace(record(1.0), hardware=record(1.0).hardware | hardware)
    assert compare.compare([record(1.0, rows=11), other], [record(9.0)]) == []
    assert len(compare.compare([record(1.0), record(9.0)], [record(9.0)])) == 1
    clock = dataclasses.replace(record(1.0), hardware=record(1.0).hardware | {"mhz": 1})
    assert len(compare.compare([clock], [record(9.0)])) == 1


def test_a_planted_regression_fails_the_command(tmp_path, capsys):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write_records(old, [record(100.0, 101.0, 102.0), record(5.0, metric="peak", direction="lower")])
    write_records(new, [record(88.0, 89.0, 90.0), record(5.0, metric="peak", direction="lower")])
    assert compare.main(["", str(new), "--against", str(old), "--color=always"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("\033[31mworse")
    figures = " ".join(out[1].removesuffix("\033[0m").split()[1:])
    assert figures == "speed ours rows_per_s 101 89 -11.9% 5.0%"
    assert out[2].startswith("\033[0mbalanced")
    assert compare.main(["", str(new), "--against", str(old), "--threshold", "20%"]) == 0
    assert "\033" not in capsys.readouterr().out
    assert compare.main(["", str(old), "--against", str(new)]) == 0


def test_base_metrics_are_updated_with_a_reason_and_then_held(tmp_path):
    folder, new = tmp_path / "base", tmp_path / "new.jsonl"
    write_records(new, [record(100.0)])
    arguments = [str(new), "--base_metrics", str(folder)]
    assert compare.main(["", *arguments, "--update", "--reason", "the first"]) == 0
    assert compare.main(["", *arguments]) == 0
    write_records(new, [record(50.0)])
    assert compare.main(["", *arguments]) == 1
    write_records(new, [record(1.0, rows=3)])
    assert compare.main(["", *arguments, "--update", "--reason", "halved on purpose"]) == 0
    (path,) = folder.iterdir()
    assert path == compare.read_base_metrics(folder, record(1.0).cpu_kind)[0]
    assert {(r.value, r.reason) for r in read_records(path)} == {
        (50.0, "halved on purpose"),
        (1.0, "halved on purpose"),
    }


def test_base_metrics_of_another_kind_of_cpu_have_their_own_file(tmp_path, capsys):
    new = tmp_path / "new.jsonl"
    other = record(100.0).hardware | {"cpu_kind": "another"}
    write_records(new, [record(10.0), dataclasses.replace(record(100.0), hardware=other)])
    command = [str(new), "--base_metrics", str(tmp_path / "base")]
    assert compare.main(["", *command, "--update", "--reason", "two"]) == 0
    assert (tmp_path / "base" / "another.jsonl").is_file()
    assert len(list((tmp_path / "base").iterdir())) == 2
    assert compare.main(["", *command]) == 0
    unknown = {name: value for name, value in other.items() if name != "cpu_kind"}
    write_records(new, [dataclasses.replace(record(1.0), hardware=unknown)])
    assert compare.main(["", *command, "--update", "--reason", "old"]) == 2
    assert_tells(capsys.readouterr().err, "speed rows_per_s", "CPU")


@pytest.mark.parametrize(
    ("made", "flags", "facts"),
    [
        (record(1.0), [], ["settings", "hardware"]),
        (record(1.0), ["--update"], ["--update", "--reason"]),
        (record(1.0, failed=2), ["--update", "--reason", "x"], ["speed rows_per_s"]),
        (record(1.0), ["--against", "{new}", "--threshold", "much"], ["threshold 'much'"]),
        (None, [], ["new.jsonl"]),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, capsys, made, flags, facts):
    new, folder = tmp_path / "new.jsonl", tmp_path / "base"
    if made is not None:
        write_records(new, [made])
    flags = [flag.format(new=new) for flag in flags]
    assert compare.main(["", str(new), "--base_metrics", str(folder), *flags]) == 2
    assert_tells(capsys.readouterr().err, *facts)
    assert not folder.exists()
