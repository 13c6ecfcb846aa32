# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed logistic regression: runs inside Triton's Python backend."""

from recsys.serve.python_backend import PythonBackendModel
from recsys_recipes.logistic.serving import ServedLogistic


class TritonPythonModel(PythonBackendModel):
    """The class that Triton's Python backend loads."""

    served_class = ServedLogistic
