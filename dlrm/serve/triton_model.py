# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed DLRM, run by Triton's Python backend."""

from dlrm.serve.served import ServedDlrm
from recsys.serve.python_backend import PythonBackendModel


class TritonPythonModel(PythonBackendModel):
    """Triton's entry point; the backend looks for this name."""

    served_class = ServedDlrm
