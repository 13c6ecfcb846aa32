# SPDX-License-Identifier: Apache-2.0
"""Item ids of an existing dataset, applied to new rows."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preproc.files.errors import PreprocError
from preproc.ratings.histories import Filtered
from preproc.ratings.parse import Interactions
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest, file_checksum
from recsys.data.sequences import DICTIONARIES, ITEM_MAP_FILE, RawIds, read_item_map


@dataclasses.dataclass(slots=True)
class KnownItems:
    """The catalogue of a dataset.

    Attributes:
        raw: [I] raw ids of the items 1, 2, ...
        fingerprints: of the dataset, and of those that its own ids came from.
        num_left_out: rows of other items so far.
    """

    raw: pa.Array
    fingerprints: list[str]
    num_left_out: int = 0

    @classmethod
    def of(cls, dataset: Path) -> "KnownItems":
        """Reads the item map of a dataset.

        Raises:
            PreprocError: the folder is no dataset of sequences, or damaged.
        """
        try:
            manifest, items = Manifest.load(dataset), read_item_map(dataset)
        except DatasetError as error:
            raise PreprocError(f"`dictionaries`: {error}") from error
        if manifest.files[ITEM_MAP_FILE]["xxh3_128"] != file_checksum(dataset / ITEM_MAP_FILE):
            raise PreprocError(
                f"`dictionaries` {dataset}: {ITEM_MAP_FILE} is not the file of which the manifest "
                "has the checksum; get the dataset again"
            )
        return cls(items.raw, [manifest.fingerprint, *manifest.semantics.get(DICTIONARIES, [])])

    def keep(self, rows: Interactions) -> Interactions:
        """Returns the rows of these items, and counts the others."""
        is_known = pc.is_in(rows.items.cast(pa.string()), self.raw).to_numpy()
        self.num_left_out += len(rows) - int(is_known.sum())
        return rows.filter(is_known)

    def number(self, filtered: Filtered) -> Filtered:
        """Returns the interactions with the numbers of this catalogue, all of whose items count."""
        places = pc.index_in(filtered.items.raw, self.raw).to_numpy()
        counts = np.zeros(len(self.raw), np.int64)
        counts[places] = filtered.items.counts
        items = np.append(0, places + 1).astype(np.int32)[filtered.sequences.items]
        sequences = dataclasses.replace(filtered.sequences, items=items, num_items=len(self.raw))
        statistics = filtered.statistics | {
            "items": len(self.raw),
            "dropped_by_dictionaries": self.num_left_out,
        }
        return Filtered(sequences, filtered.users, RawIds(self.raw, counts), statistics)
