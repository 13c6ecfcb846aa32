# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed DLRM: runs inside Triton's Python backend."""

from dlrm.export.served import ServedDlrm
from serving.python_backend import PythonBackendModel


class TritonPythonModel(PythonBackendModel):
    """The class that the server looks for."""

    served_class = ServedDlrm
