# SPDX-License-Identifier: Apache-2.0
"""Requests as a file for perf_analyzer's --input-data.

perf_analyzer draws values at random without one, which ids outside their tables make errors of.
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

    Shapes leave out the batch dimension where the model has one of its own (`batched`).
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
