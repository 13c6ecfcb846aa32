# SPDX-License-Identifier: Apache-2.0
"""`model.py` of a deployed fitted model; runs inside Triton's Python backend."""

from recsys.models.serving import ServedFitted
from recsys.serve.python_backend import PythonBackendModel


class TritonPythonModel(PythonBackendModel):
    """The class that Triton's Python backend loads."""

    served_class = ServedFitted
