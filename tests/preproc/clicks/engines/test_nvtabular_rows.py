# SPDX-License-Identifier: Apache-2.0
"""Text to the parquet parts that NVTabular reads: what is let through, and as which values."""

import gzip

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.clicks.engine import EngineJob
from preproc.clicks.engines.nvtabular import rows as nvtabular_rows
from preproc.clicks.engines.nvtabular.rows import LABEL, NUMERICAL, ROW, ValidRows, category_columns
from preproc.clicks.engines.reference import read_rows as read_reference_rows
from preproc.clicks.job import ClicksJob, semantics_of
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import criteo_format
from preproc.files import input_file
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from preproc.files.workspace import Workspace
from tests.preproc.clicks.rows import GOOD_ROWS, TEXTS, good_text


def read(tmp_path, texts, **fields) -> ValidRows:
    """Writes the files and reads them as the engine does."""
    inputs = []
    for index, text in enumerate(texts):
        path = tmp_path / f"day_{index}"
        path.write_bytes(text)
        inputs.append(InputFile.open(path))
    job = ClicksJob(
        input=tmp_path,
        output=tmp_path / "made",
        **{"max_bad_fraction": 1.0, "semantics": semantics_of("dlrm"), **fields},
    )
    workspace = Workspace(job.output, None)
    workspace.root.mkdir(exist_ok=True)
    formats = (criteo_format(unlabelled=job.semantics.unlabelled),) * len(inputs)
    engine_job = EngineJob(job, tuple(inputs), formats, workspace, ProgressReporter("none"))
    return nvtabular_rows.read_rows(engine_job)


def columns_of(rows: ValidRows) -> dict[str, np.ndarray]:
    tables = [pq.read_table(part.path) for part in rows.parts]
    assert [t.num_rows for t in tables] == [part.rows for part in rows.parts]
    return {
        name: np.concatenate([t[name].to_numpy() for t in tables])
        for name in tables[0].schema.names
    }


@settings(max_examples=40, phases=[Phase.generate])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=2),
    good=GOOD_ROWS,
    modulus=st.sampled_from([None, 7, 40_000_000, 2**32]),
    chunk=st.sampled_from([400, 3000, 10**6]),
    packed=st.booleans(),
)
def test_rows_are_the_reference_engines(tmp_path_factory, texts, good, modulus, chunk, packed):
    tmp_path = tmp_path_factory.mktemp("rows")
    texts = [good + b"\n" + text for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvtabular_rows, "CHUNK_BYTES", chunk)
        patch.setattr(input_file, "_BLOCK_BYTES", chunk)
        packer = gzip.compress if packed else bytes
        semantics = ClicksSemantics(category_modulus=modulus)
        rows = read(tmp_path, [packer(text) for text in texts], semantics=semantics)
    made = columns_of(rows)
    expected, bad = [], []
    for index in range(len(texts)):
        file = InputFile.open(tmp_path / f"day_{index}")
        row_format = criteo_format(unlabelled=semantics.unlabelled)
        parsed, bad_rows = read_reference_rows(file, row_format, semantics)
        expected.append(parsed)
        bad += bad_rows
        assert rows.files[index].rows == len(parsed.label)
        assert rows.files[index].lines == len(parsed.label) + len(bad_rows)
    assert list(rows.rejected_rows()) == bad
    assert np.array_equal(made[ROW], np.arange(sum(len(p.label) for p in expected)))
    assert np.array_equal(made[LABEL] == 1, np.concatenate([p.label for p in expected]))
    for i, name in enumerate(NUMERICAL):
        missing = np.concatenate([p.integers_missing[:, i] for p in expected])
        values = np.concatenate([p.integers[:, i] for p in expected])
        assert np.array_equal(np.isnan(made[name]), missing)
        assert np.array_equal(made[name][~missing], values[~missing])
    for i, name in enumerate(category_columns(semantics_of("dlrm"))):
        missing = np.concatenate([p.categories_missing[:, i] for p in expected])
        values = np.concatenate([p.categories[:, i] for p in expected]).astype(np.int64)
        values = values if modulus is None else values % modulus
        assert np.array_equal(made[name], np.where(missing, -1, values))


def test_too_many_bad_rows_stop_the_run_early(tmp_path, monkeypatch):
    monkeypatch.setattr(nvtabular_rows, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(input_file, "_BLOCK_BYTES", 1000)
    text = good_text(20, seed=1) + b"bad\n" * 100 + good_text(200, seed=2)
    with pytest.raises(TooManyRejectedRowsError, match=r"day_0, line 21, byte \d+: columns: bad"):
        read(tmp_path, [text], max_bad_fraction=0.01)
    assert not list(tmp_path.glob("made.work/nvtabular_rows/*/000.json"))


def test_no_valid_row(tmp_path):
    with pytest.raises(PreprocError, match="holds no valid row"):
        read(tmp_path, [b"bad\n"])
