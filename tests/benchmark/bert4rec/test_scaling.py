# SPDX-License-Identifier: Apache-2.0
"""The scaling benchmark runs the real program, keeps what it measured, and draws it."""

from xml.etree import ElementTree

import pytest

from benchmark.bert4rec import scaling as bert4rec_scaling
from benchmark.record import read_records
from bert4rec.scripts.flags import PRESETS

SVG = "{http://www.w3.org/2000/svg}"


def test_every_size_is_a_preset():
    assert set(bert4rec_scaling.PRESETS.values()) <= set(PRESETS.names())
    for size, preset in bert4rec_scaling.PRESETS.items():
        assert preset.endswith(size)


@pytest.mark.release
def test_sizes_and_options_become_records_and_pictures(tmp_path, capsys):
    results, pictures = tmp_path / "results.jsonl", tmp_path / "pictures"
    status = bert4rec_scaling.main(
        [
            *("--sizes=5m", "--table_size=5m", "--items=200", "--batch=4", "--steps=3"),
            *("--warmup=1", "--repeats=1", f"--results={results}", f"--pictures={pictures}"),
            *("--base_device=cpu", "--num_threads=1", "--num_layers=1"),
        ]
    )
    assert status == 0
    records = read_records(results)
    options = [f"5m {name}" for name in (*bert4rec_scaling.OPTIONS, *bert4rec_scaling.ADAPTERS)]
    assert {record.candidate for record in records} == {"5m", *options}
    metrics = {metric.name for metric in bert4rec_scaling.METRICS.values()}
    assert {record.metric for record in records} == metrics | {"parameters"}
    assert all(record.value > 0 for record in records)
    parameters = {r.candidate: r.value for r in records if r.metric == "parameters"}
    assert parameters["5m"] == parameters["5m baseline"] == parameters["5m compile"] == 374_440
    assert parameters["5m LoRA"] > 374_440
    output = capsys.readouterr().out
    assert "| 5m AMP |" in output
    drawn = sorted(path.name for path in pictures.iterdir())
    expected = [f"bert4rec_scaling_{figure}.svg" for figure in ("memory", "throughput", "time")]
    assert drawn == expected
    for path in pictures.iterdir():
        ElementTree.fromstring(path.read_text())
