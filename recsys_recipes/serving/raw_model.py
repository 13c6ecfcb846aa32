# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a model of clicks from raw rows, in Triton's Python backend."""

from recsys.serve.python_backend import PythonBackendModel
from recsys_recipes.serving.raw_clicks import ServedRawClicks


class TritonPythonModel(PythonBackendModel):
    """Triton's entry point; the backend looks for this name."""

    served_class = ServedRawClicks
