# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed blend: runs inside Triton's Python backend."""

from recsys.serve.python_backend import PythonBackendModel
from recsys_recipes.blending.serving import ServedBlend


class TritonPythonModel(PythonBackendModel):
    """The class that Triton's Python backend loads."""

    served_class = ServedBlend
