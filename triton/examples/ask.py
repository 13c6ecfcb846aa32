# SPDX-License-Identifier: Apache-2.0
"""Asks a model over HTTP, with only `tritonclient[http]` and NumPy.

    python triton/examples/ask.py 127.0.0.1:8000 dlrm features 0.5,1.25,... 3,17,...
    python triton/examples/ask.py 127.0.0.1:8000 dlrm line "$(head -1 day_23 | cut -f2-)"
    python triton/examples/ask.py 127.0.0.1:8000 bert4rec history 50,181,172
    python triton/examples/ask.py 127.0.0.1:8000 bert4rec ids B00001,B00007

A row as the dataset holds it, a line of the log (--raw), item numbers, or raw ids (--raw_ids).
"""

import json
import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException


def tensor(name: str, values: list[object], kind: str) -> http.InferInput:
    """Returns an input of one row; a request may have many."""
    dtypes = {"FP32": np.float32, "INT64": np.int64, "BYTES": np.object_}
    array = np.array([values], dtypes[kind])  # [rows, columns]
    made = http.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def inputs_of(kind: str, values: list[str]) -> list[http.InferInput]:
    """Returns the inputs of a request."""
    if kind == "features":
        numbers, ids = values
        return [
            tensor("numerical", [float(number) for number in numbers.split(",")], "FP32"),
            tensor("categorical", [int(number) for number in ids.split(",")], "INT64"),
        ]
    (value,) = values
    if kind == "line":
        return [tensor("line", [value], "BYTES")]
    if kind == "history":
        return [tensor("history", [int(item) for item in value.split(",")], "INT64")]
    if kind == "ids":
        return [tensor("history", [*value.split(",")], "BYTES")]
    raise SystemExit(f"ask.py: {kind} is not one of features, line, history, ids")


def main(arguments: list[str]) -> int:
    """Prints the reply as JSON; returns 1 for a refused request."""
    if len(arguments) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    address, model, kind, *values = arguments
    # A program should keep one client per thread: a new connection for each request costs more than
    # most requests. The timeout is in seconds.
    with http.InferenceServerClient(address, network_timeout=10.0) as client:
        try:
            # The reply has all outputs, since none is named here.
            result = client.infer(model, inputs_of(kind, values))
        except InferenceServerException as error:  # names row, feature, value and range
            print(f"ask.py: {error}", file=sys.stderr)
            return 1
    # Strings come as UTF-8 bytes.
    names = [output["name"] for output in result.get_response()["outputs"]]
    reply = {name: result.as_numpy(name) for name in names}
    print(json.dumps({name: array.tolist() for name, array in reply.items()}, default=bytes.decode))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
