# SPDX-License-Identifier: Apache-2.0
"""Writes requests as a file for perf_analyzer's --input-data.

Without a file perf_analyzer draws random values, and ids outside their tables cause errors.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recsys.files.durable import whole_file
from recsys.serve.client.requests import Array, Arrays, num_rows


def write_perf_input(
    path: Path, requests: Iterable[Arrays], most_rows: int, *, batched: bool
) -> int:
    """Writes rows of requests, which perf_analyzer batches with -b; returns their number.

    If the model has a batch dimension (`batched`), shapes leave it out.
    """
    entries = [
        {name: _tensor(array, batched) for name, array in row.items()}
        for row in itertools.islice(_rows(requests), most_rows)
    ]
    with whole_file(path) as file:
        file.write(json.dumps({"data": entries}).encode() + b"\n")
    return len(entries)


def _rows(requests: Iterable[Arrays]) -> Iterator[Arrays]:
    for request in requests:
        for row in range(num_rows(request)):
            yield {name: array[row : row + 1] for name, array in request.items()}


def _tensor(array: Array, batched: bool) -> dict[str, Any]:
    values = array.ravel().tolist()
    if array.dtype == np.object_:
        values = [v.decode() if isinstance(v, bytes) else v for v in values]
    return {"content": values, "shape": list(array.shape[1:] if batched else array.shape)}
