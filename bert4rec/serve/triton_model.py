# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed BERT4Rec: runs inside Triton's Python backend."""

from bert4rec.serve.served import ServedBert4Rec
from recsys.serve.python_backend import PythonBackendModel


class TritonPythonModel(PythonBackendModel):
    """The class that Triton's Python backend loads."""

    served_class = ServedBert4Rec
