# SPDX-License-Identifier: Apache-2.0
"""Every engine must make the recorded bytes from the conformance file."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from preproc.criteo.job import PRESETS, CriteoJob, semantics_of
from preproc.criteo.pipeline import prepare
from preproc.criteo.rules import REJECT_REASONS
from preproc.files.quarantine import unescape_row
from recsys.data.manifest import Manifest

FOLDER = Path(__file__).parents[1] / "conformance"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
MAX_BAD_FRACTION = 0.2


def run(tmp_path: Path, engine: str, preset: str, source: Path = FOLDER) -> Manifest:
    job = CriteoJob(
        input=source,
        output=tmp_path / "dataset",
        semantics=semantics_of(preset),
        preset=preset,
        engine=engine,
        max_bad_fraction=MAX_BAD_FRACTION,
        threads=2,
    )
    return Manifest.load(prepare(job))


@pytest.mark.parametrize("preset", PRESETS.names())
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_engine_makes_the_recorded_bytes(tmp_path, engine, preset):
    manifest = run(tmp_path, engine, preset)
    expected = EXPECTED[preset]
    assert manifest.rejected == expected["rejected"]
    assert manifest.rows == expected["rows"]
    assert manifest.cardinalities == expected["cardinalities"]
    checksums = {name: entry["xxh3_128"] for name, entry in manifest.files.items()}
    different = [n for n in expected["files"] if checksums.get(n) != expected["files"][n]]
    assert different == []
    assert checksums.keys() == expected["files"].keys()


def test_every_reason_occurs():
    assert all(EXPECTED["dlrm"]["rejected"][reason] > 5 for reason in REJECT_REASONS)


def test_packed_days_give_the_same_rows(tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    for day in range(3):
        text = (FOLDER / f"day_{day}.tsv").read_bytes()
        # Two members, as parallel gzip tools write them.
        members = gzip.compress(text[:70_000]) + gzip.compress(text[70_000:])
        (packed / f"day_{day}.gz").write_bytes(members)
    manifest = run(tmp_path, "native", "dlrm", packed)
    checksums = {name: entry["xxh3_128"] for name, entry in manifest.files.items()}
    expected = EXPECTED["dlrm"]["files"]
    assert {n for n in expected if checksums[n] != expected[n]} == {"quarantine.csv"}  # file names


def test_quarantine_holds_the_very_bytes(tmp_path):
    run(tmp_path, "native", "dlrm")
    with (tmp_path / "dataset" / "quarantine.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(EXPECTED["dlrm"]["rejected"].values())
    for row in rows:
        text = (FOLDER / row["file"]).read_bytes()
        start = int(row["byte_offset"])
        raw = unescape_row(row["row"])
        assert text[start : start + len(raw)] == raw
        assert text[start + len(raw) :][:1] in (b"\n", b"\r", b"")
        assert text[:start].count(b"\n") + 1 == int(row["line_number"])


def test_the_file_is_small():
    tsv = sorted(FOLDER.glob("*.tsv"))
    assert sum(p.stat().st_size for p in tsv) < 250_000
    assert sum(p.read_bytes().count(b"\n") for p in tsv) < 2_000
