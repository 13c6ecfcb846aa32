# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed DLRM: runs inside Triton's Python backend."""

from dlrm.serve.served import ServedDlrm
from recsys.serve.python_backend import PythonBackendModel


class TritonPythonModel(PythonBackendModel):
    """The class that the server looks for."""

    served_class = ServedDlrm
