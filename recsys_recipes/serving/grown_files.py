# SPDX-License-Identifier: Apache-2.0
"""Files of a deployed version that a delta extends instead of replacing them."""

from preproc.clicks.serving.feature_file import new_categories, with_categories
from recsys.serve.manifest import FEATURE_FILE
from recsys.serve.versions.delta import Grown

GROWN = {FEATURE_FILE: Grown(new_categories, with_categories)}
"""File name -> how it grows."""
