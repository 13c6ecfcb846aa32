# SPDX-License-Identifier: Apache-2.0
"""The registry of models: what an entry names is there."""

from pkgutil import resolve_name

import pytest

from recsys.serve.manifest import DeploymentError
from recsys_recipes.blending.kind import kind_of
from recsys_recipes.fitted import NAMES, OF_CLICKS
from recsys_recipes.models import MODELS, served_clicks, served_ratings


@pytest.mark.parametrize("name", MODELS)
def test_what_an_entry_names_can_be_imported(name):
    spec = MODELS[name]
    named = [spec.export_class, spec.open_stored, spec.served_class]
    if spec.data == "clicks":
        named.append(spec.raw_export_class)
    assert all(callable(resolve_name(each)) for each in named)
    if name in NAMES:
        kind = OF_CLICKS[name] if name in OF_CLICKS else kind_of(name)
        assert (kind.name, kind.title) == (name, spec.title)


def test_a_deployment_of_other_data_has_no_class_that_serves_it():
    for served, name in ((served_clicks, "ease"), (served_ratings, "dlrm"), (served_clicks, "x")):
        with pytest.raises(DeploymentError, match=name):
            served(name)
