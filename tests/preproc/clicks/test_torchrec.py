# SPDX-License-Identifier: Apache-2.0
"""--layout torchrec: the rows of the other layout at 160 bytes each, readable and trainable."""

import re
from pathlib import Path

import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from preproc.clicks.kernel import binding
from preproc.clicks.layouts import torchrec as torchrec_layout
from preproc.clicks.rules import SPLITS, ClicksSemantics
from recsys.data.manifest import Manifest
from recsys.data.parquet import METADATA_FILE, ParquetReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.verify.run import verify
from tests import harness
from tests.preproc.clicks.rows import run, stopped
from tests.tools import needs

BOTH = ("split", "parquet")
SEMANTICS = ClicksSemantics(frequency_limit=3, shuffle_seed=11)
ENGINES = ("native", "reference") if binding.is_built() else ("reference",)


@pytest.fixture(scope="module")
def both_layouts(days, tmp_path_factory) -> tuple[Path, Path]:
    """The same rows in NVIDIA's layout and in TorchRec's, by different engines."""
    root = tmp_path_factory.mktemp("made")
    for layout, engine in (("nvidia", ENGINES[0]), ("torchrec", ENGINES[-1])):
        run(days, root / layout, engine, layout=layout, semantics=SEMANTICS, format=BOTH)
    return root / "nvidia", root / "torchrec"


def test_every_value_takes_four_bytes(both_layouts):
    """In the same rows, as its own reader takes them too."""
    narrow, wide = both_layouts
    assert verify(wide)[0].problems == []
    for split in SPLITS:
        expected = ParquetReader(narrow, split).read_group(0)
        rows = len(expected.label)
        assert sum(p.stat().st_size for p in (wide / split).iterdir()) == 160 * rows
        reader, others = SplitBinaryReader(wide, split), SplitBinaryReader(narrow, split)
        assert (reader.flavour, reader.num_rows) == ("wide", rows)
        made = reader.read(0, rows)
        assert np.array_equal(made.label, expected.label)
        assert made.numerical.tobytes() == expected.numerical.tobytes()
        narrowed = made.numerical.astype(np.float16)
        assert narrowed.tobytes() == others.read(0, rows).numerical.tobytes()
        for ids, expected_ids in zip(made.categorical, expected.categorical, strict=True):
            assert np.array_equal(ids, expected_ids)


def test_parquet_has_the_names_and_the_metadata_file(both_layouts):
    narrow, wide = both_layouts
    for split in SPLITS:
        folder = wide / "parquet" / split
        footer = pq.read_metadata(folder / METADATA_FILE)
        names = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]
        assert footer.schema.to_arrow_schema().names == names
        table = pyarrow.dataset.parquet_dataset(folder / METADATA_FILE).to_table()
        ours = ParquetReader(wide, split)
        assert footer.num_rows == len(table) == ours.num_rows
        theirs = pq.read_table(narrow / "parquet" / split / "part_00000.parquet")
        assert table.rename_columns(theirs.column_names).equals(theirs)
        assert ours.spec.numerical[0] == "int_0"


@pytest.mark.parametrize("layout", ["nvidia", "torchrec"])
@pytest.mark.parametrize(
    ("form", "of_others"), [("split", "parquet/"), ("parquet", "train/|validation/|test/")]
)
def test_one_format_alone(days, both_layouts, tmp_path, layout, form, of_others):
    fields = {"layout": layout, "semantics": SEMANTICS, "format": (form,)}
    both = Manifest.load(next(root for root in both_layouts if root.name == layout)).files
    expected = {name: entry for name, entry in both.items() if not re.match(of_others, name)}
    assert run(days, tmp_path / "made", ENGINES[0], **fields).files == expected
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


@needs("compiled Criteo kernel")
def test_finished_units_are_not_written_again(days, tmp_path, monkeypatch):
    monkeypatch.setattr(torchrec_layout, "UNIT_ROWS", 100)
    fields = {"layout": "torchrec", "threads": 1}
    expected = run(days, tmp_path / "expected", **fields)
    units = []
    write_record = torchrec_layout.write_record

    def noted(path: Path, record: dict[str, int]) -> None:
        write_record(path, record)
        units.append(path.name)

    monkeypatch.setattr(torchrec_layout, "write_record", noted)
    with stopped(torchrec_layout, "write_record", after=7):
        run(days, tmp_path / "made", **fields)
    assert run(days, tmp_path / "made", **fields).files == expected.files
    assert len(units) == len(set(units)) > 14


def test_it_trains(both_layouts, tmp_path):
    """TorchRec's command line reads the folder as it is; the losses are those of split binary."""
    from dlrm.scripts import train_torchrec

    losses = []
    for root in both_layouts:
        log = tmp_path / f"{root.name}.json"
        settings = (
            *(f"--binary_path={root}", "--embedding_dim=8", "--batch_size=64"),
            *("--dense_arch_layer_sizes=16,8", "--over_arch_layer_sizes=16,1"),
            *("--learning_rate=0.1", "--throughput_check_freq_within_epoch=5"),
            *(f"--log_path={log}", "--base_device=cpu", "--max_steps=15", "--num_threads=1"),
        )
        assert harness.call(train_torchrec, *settings) == 0
        records = harness.read_log(log)
        losses.append([r["data"]["loss"] for r in records if "loss" in r.get("data", {})])
    narrow, wide = losses
    assert len(wide) >= 3
    assert wide == pytest.approx(narrow, abs=2e-3)  # float16 features against float32
