# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile deltas: each is refused, and nothing is written outside the new version."""

import json

import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.manifest import DEPLOYMENT_FILE
from recsys.serve.versions.delta import DeltaError, apply_delta, write_delta
from tests.dlrm.deployed import deploy_checkpoint
from tests.harness import refusal
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.tools import needs

pytestmark = needs("compiled Triton backend")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An earlier version, and a delta of a later one."""
    folder = tmp_path_factory.mktemp("deltas")
    serving, versions = ServingSettings(backend="native"), []
    for sizes in ((5, 200), (6, 250)):
        checkpoint, _ = dlrm_checkpoint(folder / f"checkpoint_{sizes[0]}", sizes)
        versions.append(deploy_checkpoint(checkpoint, folder / "models", serving=serving).folder)
    write_delta(*versions, folder / "delta")
    return versions[0], folder / "delta"


def outside(described):
    return described | {"later": described["later"] | {"../outside": "0" * 32}}


def without_sizes(described):
    del described["later_sizes"]
    return described


DESCRIBED = {
    "a name outside": outside,
    "a number": lambda _: 7,
    "no sizes": without_sizes,
    "sizes of another table": lambda described: described | {"later_sizes": [1 << 40]},
    "no description of the version": lambda described: described | {"later": {}},
}


@pytest.mark.parametrize("case", DESCRIBED)
def test_a_description_that_does_not_fit_is_refused(made, tmp_path, case):
    earlier, delta = made
    with safe_open(delta, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = json.loads(file.metadata()["delta"])
    arrays["file:../outside"] = np.zeros(3, np.uint8)
    changed = {"delta": json.dumps(DESCRIBED[case](described))}
    (tmp_path / "delta").write_bytes(safetensors.numpy.save(arrays, changed))
    (tmp_path / "made").mkdir()
    with refusal(kind=DeltaError, path=tmp_path / "delta"):
        apply_delta(tmp_path / "delta", earlier, tmp_path / "made")
    assert not (tmp_path / "outside").exists()


def test_the_delta_itself_makes_the_later_version(made, tmp_path):
    earlier, delta = made
    apply_delta(delta, earlier, tmp_path)
    later = earlier.with_name("2")
    assert (tmp_path / DEPLOYMENT_FILE).read_bytes() == (later / DEPLOYMENT_FILE).read_bytes()
