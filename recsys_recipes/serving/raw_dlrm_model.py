# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a DLRM from raw rows, in Triton's Python backend."""

from dlrm.serve.served import ServedDlrm
from preproc.clicks.serving.line_transform import LineTransform
from recsys.serve.python_backend import PythonBackendModel
from recsys.serve.raw_rows import served_from_raw_rows


class TritonPythonModel(PythonBackendModel):
    """Triton's entry point; the backend looks for this name."""

    served_class = served_from_raw_rows(ServedDlrm, LineTransform)
