# SPDX-License-Identifier: Apache-2.0
"""Item sequences of users: in memory, on disk, and split.

docs/dataset_format.md describes the files and the rules.
"""

from recsys.data.sequences.files import (
    FOLDER,
    ITEM_MAP_FILE,
    ITEM_MAP_SCHEMA,
    SEQUENCE_SCHEMA,
    USER_MAP_FILE,
    USER_MAP_SCHEMA,
    part_name,
    read_item_map,
    read_sequences,
    read_table,
    read_user_map,
    write_parquet,
    write_sequences,
)
from recsys.data.sequences.histories import (
    MIN_LENGTH,
    RawIds,
    Sequences,
    Targets,
    TemporalSplit,
    Times,
    order_raw_ids,
)
from recsys.data.sequences.split import (
    DICTIONARIES,
    LEAVE_ONE_OUT,
    counts_before,
    cut_time,
    lengths_before,
    parse_split,
    split_fingerprint,
    split_rows,
    temporal_fingerprint,
    temporal_statistics,
)

__all__ = [
    "DICTIONARIES",
    "FOLDER",
    "ITEM_MAP_FILE",
    "ITEM_MAP_SCHEMA",
    "LEAVE_ONE_OUT",
    "MIN_LENGTH",
    "SEQUENCE_SCHEMA",
    "USER_MAP_FILE",
    "USER_MAP_SCHEMA",
    "RawIds",
    "Sequences",
    "Targets",
    "TemporalSplit",
    "Times",
    "counts_before",
    "cut_time",
    "lengths_before",
    "order_raw_ids",
    "parse_split",
    "part_name",
    "read_item_map",
    "read_sequences",
    "read_table",
    "read_user_map",
    "split_fingerprint",
    "split_rows",
    "temporal_fingerprint",
    "temporal_statistics",
    "write_parquet",
    "write_sequences",
]
