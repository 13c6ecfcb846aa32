# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a deployed blend of clicks: runs inside Triton's Python backend."""

from recsys.serve.python_backend import PythonBackendModel
from recsys_recipes.blending.clicks.serving import ServedClicksBlend


class TritonPythonModel(PythonBackendModel):
    """The class that Triton's Python backend loads."""

    served_class = ServedClicksBlend
