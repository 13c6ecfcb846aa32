# SPDX-License-Identifier: Apache-2.0
"""Writes the conformance file: three days of rows with every edge case, and what must come out.

    python tests/preproc/conformance/make_conformance.py

day_0.tsv ... day_2.tsv come from a fixed seed, expected.json (checksums of every file of the
dataset, per preset) from the reference engine. Every engine must reproduce expected.json.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from preproc.criteo.job import PRESETS, CriteoJob, semantics_of
from preproc.criteo.pipeline import prepare
from preproc.criteo.rules import NUM_CATEGORICAL, NUM_NUMERICAL
from recsys.data.manifest import Manifest

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected.json"
MAX_BAD_FRACTION = 0.2

GOOD_INTEGERS = (
    b"|0|-0|1|-1|-2|-3|-2147483648|2147483647|0000000007|-000000007|99999999|"
    b"100000000|16777217|10364|15317|58037908|101320060"
).split(b"|")
GOOD_CATEGORIES = (
    b"|0|00000000|ffffffff|FFFFFFFF|fFfFfFfF|1|00000001|0000001|abc|ABC|00000abc|"
    b"2625a00|2625A01|9|a|7fffffff|80000000"
).split(b"|")
BAD_INTEGERS = (
    b"2147483648|-2147483649|9999999999|12345678901|-|--1|+1|1.5|1e3| 1|1 |abc|0x1|"
    b"1,000|00000000001|-00000000001|1-"
).split(b"|")
BAD_CATEGORIES = b'zzzz|123456789|000000000|-1|g| |"|12 4|@|`|G0|0x12|/|:'.split(b"|")
BAD_BYTES = [b"\x00", b"\xc3\xa9", b"\x7f", b"1\r", b"\x0b", b"\xff", b"1\x002", b"\xef\xbb\xbf1"]
BAD_LABELS = [b"", b"2", b"-1", b"00", b"01", b"1 ", b"true", b"0.0", b"/"]


def plain_row(rng: np.random.Generator) -> list[bytes]:
    """Returns a good row of small values: counts have ties, and many categories are rare."""
    integers = [
        b"" if rng.random() < 0.3 else b"%d" % (rng.geometric(0.05) - 3)
        for _ in range(NUM_NUMERICAL)
    ]
    categories = []
    for column in range(NUM_CATEGORICAL):
        id_ = min(rng.zipf(1.3), 40 * (column + 1))
        value = (int(id_) * 2654435761 * (column + 1)) % 2**32
        spelling = b"%08x" if column % 5 else b"%x"  # some columns without leading zeros
        categories.append(b"" if rng.random() < 0.4 else spelling % value)
    return [b"1" if rng.random() < 0.25 else b"0", *integers, *categories]


def edge_rows(rng: np.random.Generator) -> list[bytes]:
    """Returns rows with one special field each, bad rows of every reason among them."""
    rows = []
    for position, values in (
        (range(1, 1 + NUM_NUMERICAL), GOOD_INTEGERS + BAD_INTEGERS + BAD_BYTES),
        (range(1 + NUM_NUMERICAL, 40), GOOD_CATEGORIES + BAD_CATEGORIES + BAD_BYTES),
        (range(1), BAD_LABELS + BAD_BYTES),
    ):
        for value in values:
            for _ in range(2):
                row = plain_row(rng)
                row[rng.choice(list(position))] = value
                rows.append(b"\t".join(row))
    # Two faults in a row: the first field from the left counts, and the field count before all.
    for first, second in ((0, 5), (5, 20), (5, 39), (20, 39), (1, 39)):
        row = plain_row(rng)
        row[first], row[second] = b"x!", b"\xe9"
        rows.append(b"\t".join(row))
        row[first], row[second] = b"\xe9", b"x!"
        rows.append(b"\t".join([*row, b""]))
        rows.append(b"\t".join(row))
    full = plain_row(rng)
    for count in (0, 1, 2, 30, 39):
        rows.append(b"\t".join(full[:count]))
    rows.append(b"\t".join([*full, b"1"]))  # 41 columns
    rows.append(b"\t".join([*full, b""]))  # a tab at the end
    rows.append(b"\t" * 39)  # everything missing, the label too
    rows.append(b"0" + b"\t" * 39)  # everything missing but the label
    rows.append(b"1" + b"\t" * 500)
    rows.append(b" ".join(full))
    rows.append(b",".join(full))
    rows.append(b"0\t" + b"7" * 3000 + b"\t" * 38)
    rows.append(b"\r")
    rows.append(b"\t".join(full) + b"\r")  # CR CR LF where the line end is CRLF
    return rows


def make_days() -> list[bytes]:
    """Returns the text of the days; the last has no final line end."""
    rng = np.random.default_rng(20240229)
    edges = edge_rows(rng)
    plain = [b"\t".join(plain_row(rng)) for _ in range(1120)]
    rng.shuffle(plain)
    days = []
    for day, end in enumerate((b"\n", b"\r\n", b"\n")):
        rows = [*edges[day::3], *plain[day::3]]
        order = rng.permutation(len(rows))
        # A good row first and last, so that the days look like days at a glance.
        rows = [plain[day], *(rows[i] for i in order), plain[-1]]
        days.append(end.join(rows) + (end if day < 2 else b""))
    return days


def main() -> None:
    """Writes everything."""
    for day, text in enumerate(make_days()):
        (FOLDER / f"day_{day}.tsv").write_bytes(text)
    expected = {}
    for preset in PRESETS.names():
        semantics = semantics_of(preset)
        with tempfile.TemporaryDirectory() as folder:
            dataset = prepare(
                CriteoJob(
                    input=FOLDER,
                    output=Path(folder) / "dataset",
                    semantics=semantics,
                    engine="reference",
                    max_bad_fraction=MAX_BAD_FRACTION,
                )
            )
            manifest = Manifest.load(dataset)
        files = {name: entry["xxh3_128"] for name, entry in manifest.files.items()}
        expected[preset] = {
            "rows": manifest.rows,
            "rejected": manifest.rejected,
            "cardinalities": manifest.cardinalities,
            "files": files,
        }
    EXPECTED.write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main()
