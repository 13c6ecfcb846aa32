# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a leave-one-out split, and its order of ids."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from recsys.data.sequences import RawIds, Sequences

_BLOCK_USERS = 1 << 18


def order_raw_ids(raw: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the order of raw ids: by length, then by bytes.

    Of integers without leading zeros this is the order of their values.
    """
    table = pa.table({"length": pc.binary_length(raw), "raw": raw})
    order: npt.NDArray[np.uint64] = pc.sort_indices(
        table, sort_keys=[("length", "ascending"), ("raw", "ascending")]
    ).to_numpy()
    return order.astype(np.int64)


def split_fingerprint(sequences: Sequences, users: RawIds, items: RawIds) -> str:
    """Returns a checksum of the leave-one-out split, in raw ids.

    Whoever has the raw log can compute it, whatever dense ids are in use: XXH3-128 over a line
    `user TAB training items TAB validation item TAB test item LF` of each user, users in the order
    of `order_raw_ids`.
    """
    digest = xxhash.xxh3_128()
    order = order_raw_ids(users.raw)
    train = sequences.lengths - 2
    validation, test = sequences.validation_items - 1, sequences.test_items - 1
    for start in range(0, len(order), _BLOCK_USERS):
        chosen = order[start : start + _BLOCK_USERS]
        columns = [
            users.raw.take(pa.array(chosen)),
            pc.cast(pa.array(train[chosen]), pa.string()),
            items.raw.take(pa.array(validation[chosen])),
            pc.binary_join_element_wise(items.raw.take(pa.array(test[chosen])), "", "\n"),
        ]
        lines = pc.binary_join_element_wise(*columns, "\t")
        digest.update(
            pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")[0].as_buffer()
        )
    return digest.hexdigest()
