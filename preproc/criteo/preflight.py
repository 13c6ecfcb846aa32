# SPDX-License-Identifier: Apache-2.0
"""Checks files, their format and disk space before a run starts."""

from collections import Counter

from preproc.criteo.input import CRITEO_LOG, find_inputs
from preproc.criteo.job import CriteoJob
from preproc.criteo.rules import NUM_COLUMNS, NUM_NUMERICAL, reject_reason, split_bounds
from preproc.files.disk import DiskNeeds
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, refuse_utf8_mark
from preproc.files.quarantine import excerpt
from preproc.files.workspace import Workspace, check_output

SAMPLE_ROWS = 100

_SPLIT_ROW_BYTES = 89  # the full Criteo log at frequency limit 15
_PARQUET_ROW_BYTES = 60 + 52  # the part files, and float32 columns until they are written
_RUNS_ROW_BYTES = 50  # sorted runs, at 64 MiB of text per unit
_FLOAT32_ROW_BYTES = 52
_WIDE_ROW_BYTES = 160
_NVTABULAR_ROW_BYTES = 120  # parquet of the valid rows, and the encoded rows of one unit
_SHUFFLE_KEY_BYTES = 8
_UNKNOWN_ROW_BYTES = 240


def check(job: CriteoJob) -> tuple[tuple[InputFile, ...], DiskNeeds]:
    """Checks that the run can start; returns inputs and disk needs.

    Raises:
        PreprocError: it cannot; the message names the file, the reason and the remedy.
    """
    check_output(job.output, job.input, job.work_dir, overwrite=job.overwrite)
    inputs = find_inputs(job.input, by_days=job.semantics.halves_last_day)
    if job.semantics.split_days is not None:
        split_bounds([1] * len(inputs), job.semantics)
    samples = [_sample(file) for file in inputs]
    for file, rows in zip(inputs, samples, strict=True):
        check_sample(file, rows, unlabelled=job.semantics.unlabelled)
    lengths = [len(row) + 1 for rows in samples for row in rows]
    row_bytes = sum(lengths) / len(lengths) if lengths else _UNKNOWN_ROW_BYTES
    needs = disk_needs(job, sum(f.text_bytes for f in inputs) / row_bytes)
    needs.check(Workspace(job.output, job.work_dir).used_bytes())
    return inputs, needs


def _sample(file: InputFile) -> list[bytes]:
    """Returns up to `SAMPLE_ROWS` rows from the start of a file."""
    text = b""
    for block in file.blocks():  # the first ones of a gzip file may end in the first row
        text += block
        if b"\n" in block or len(text) > 2**19 - 1:
            break
    lines = text.split(b"\n", SAMPLE_ROWS)
    if len(lines) > 1 or len(text) > 2**19 - 1:
        lines.pop()  # the text after the last row of the sample, or a row cut in the middle
    return [line.removesuffix(b"\r") for line in lines]


def check_sample(file: InputFile, rows: list[bytes], *, unlabelled: bool = False) -> None:
    """Refuses a file whose first rows are no Criteo log.

    Raises:
        PreprocError: no row is valid, or the first is a header line or has a byte order mark.
    """
    if rows:
        refuse_utf8_mark(file.path, rows[0])
    reasons = [reject_reason(row, unlabelled=unlabelled) for row in rows]
    if rows and _is_header(rows[0]) and (None in reasons[1:] or len(rows) == 1):
        raise PreprocError(
            f"{file.path}: begins with a header line ({excerpt(rows[0], 80)}); Criteo logs have "
            f"none. Remove it: tail -n +2 {file.path.name} > without_header"
        )
    if None in reasons:
        return
    if not rows:
        raise PreprocError(
            f"{file.path}: the first line does not end within 512 KiB; this is not {CRITEO_LOG}"
        )
    separator, count = max(
        ((name, _usual_count(rows, byte)) for name, byte in _SEPARATORS.items()),
        key=lambda counted: (counted[1], counted[0] == "tab"),
    )
    wanted = NUM_COLUMNS - unlabelled
    if separator == "tab" and count == NUM_COLUMNS - 1 and not unlabelled:
        guess = (
            "looks like Kaggle test.txt, which has no label; use train.txt, or `unlabelled` with "
            "the `dictionaries` of a dataset"
        )
    elif separator == "tab" and count == NUM_COLUMNS and unlabelled:
        guess = "the rows seem to begin with a label; drop `unlabelled`"
    elif separator != "tab" and count in (NUM_COLUMNS, NUM_COLUMNS - 1):
        guess = f"the fields are separated by {separator}s; convert them to tabs"
    elif count == wanted:
        guess = f"{wanted} fields as there should be, but the first row is refused ({reasons[0]})"
    else:
        label = "" if unlabelled else "label, "
        guess = f"this is not a Criteo log ({label}13 integers, 26 hex categories)"
    raise PreprocError(
        f"{file.path}: none of the first {len(rows)} rows is valid. {count} {separator}-separated "
        f"fields: {guess}. Row 1: {excerpt(rows[0], 80)}"
    )


_SEPARATORS = {"tab": b"\t", "comma": b",", "semicolon": b";", "space": b" "}


def _usual_count(rows: list[bytes], separator: bytes) -> int:
    return Counter(len(row.split(separator)) for row in rows).most_common(1)[0][0]


def _is_header(row: bytes) -> bool:
    """Returns True if label and integer columns hold names."""
    fields = row.split(b"\t")
    names = [f for f in fields[: 1 + NUM_NUMERICAL] if f.strip() and f.strip()[:1].isalpha()]
    return len(fields) == NUM_COLUMNS and len(names) == 1 + NUM_NUMERICAL


def disk_needs(job: CriteoJob, rows: float) -> DiskNeeds:
    """Estimates the disk space of a run from its rows."""
    workspace = Workspace(job.output, job.work_dir)
    output_bytes = rows * _SPLIT_ROW_BYTES
    if "parquet" in job.format:
        output_bytes += rows * _PARQUET_ROW_BYTES
    if "npy" in job.format:
        output_bytes += rows * (_WIDE_ROW_BYTES + _FLOAT32_ROW_BYTES)
    if job.layout == "torchrec":
        output_bytes += rows * (_FLOAT32_ROW_BYTES + _WIDE_ROW_BYTES)
    if job.semantics.shuffle_seed is not None:  # the columns in input order, and records of them
        has_float32 = job.format != ("split",) or job.layout == "torchrec"
        column_bytes = _SPLIT_ROW_BYTES + has_float32 * _FLOAT32_ROW_BYTES
        output_bytes += rows * (2 * column_bytes + _SHUFFLE_KEY_BYTES)
    work_bytes = _NVTABULAR_ROW_BYTES if job.engine == "nvtabular" else _RUNS_ROW_BYTES
    return DiskNeeds(
        {workspace.staging: output_bytes, workspace.root: rows * work_bytes},
        rows,
        "choose `output` or `work_dir` on another disk, or write one `format` only",
    )
