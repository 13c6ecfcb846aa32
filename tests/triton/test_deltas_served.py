# SPDX-License-Identifier: Apache-2.0
"""Deltas applied beside a live server: no request fails, and no answer mixes two versions."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests.dlrm.conftest import make_program
from tests.dlrm.days import FIRST
from tests.preproc.clicks.rows import extend, good_text, without_labels
from tests.tools import needs
from tests.triton.conftest import deploy, deployer
from tests.triton.test_reload import Flow, addresses

pytestmark = [pytest.mark.triton_server, needs("compiled Criteo kernel", "compiled Triton backend")]

NAME = "daily"


def write_versions(folder: Path, days: int, backend: str) -> list[bytes]:
    """Deploys a version each day to `here`, with delta_2 ...; returns lines of the last day."""
    train = make_program(folder)
    (folder / "logs").mkdir()
    for number in range(days):
        log = folder / "logs" / f"log_{number}"
        log.write_bytes(good_text(60 if number else 600, seed=number, vocabulary=600))
        extend(folder / "days", log, FIRST)
        paths = (f"--dataset={folder / 'days'}", f"--save_checkpoint_path={folder / 'run'}")
        resume, delta = (), ()
        if number:
            resume, delta = ("--resume",), (f"--delta={folder / f'delta_{number + 1}'}",)
        train(*paths, "--grow", "--batch_size=64", *resume)
        day = folder / "days" / f"day_{number:04d}"
        flags = (f"--name={NAME}_{backend}", f"--dataset={day}", "--raw", f"--backend={backend}")
        deploy(folder / "run", folder / "here", *flags, *delta)
    return without_labels(log.read_bytes()).splitlines()[:4]


def apply_deltas(
    server, folder: Path, days: int, backend: str, answers_per_version: int, pause_s: float = 0.02
) -> None:
    """Applies every delta to a server that is asked all the while, and checks each answer."""
    lines, name = write_versions(folder, days, backend), f"{NAME}_{backend}"
    request = {"line": np.array(lines, np.object_)[:, None]}
    versions = [folder / "here" / name / str(number) for number in range(1, days + 1)]
    offline = np.stack([ServedRawClicks.open(v, None).respond(request)["logit"] for v in versions])
    served = server.repository / name
    shutil.copytree(folder / "here" / name, served)
    for version in versions[1:]:
        shutil.rmtree(served / version.name)
    server.load(name)
    with Flow(addresses(server, name), request, pause_s) as flow:
        flow.wait_for_more(answers_per_version)
        for number in range(2, days + 1):
            flags = (f"--apply={folder / f'delta_{number}'}", f"--name={name}")
            assert deployer(server.repository, *flags) == 0
            server.load(name)
            assert server.is_ready(name, number)
            flow.wait_for_more(answers_per_version)
    assert flow.failures == []
    for answers in flow.answers:
        distance = np.abs(np.stack(answers)[:, None] - offline).max(axis=(2, 3))
        assert distance.min(axis=1).max() < 1e-6
        order = distance.argmin(axis=1)
        assert (np.diff(order) >= 0).all()
        assert set(order.tolist()) == set(range(days))


@pytest.mark.parametrize("backend", ["native", "python"])
def test_each_answer_is_whole_one_versions(server, tmp_path, backend):
    apply_deltas(server, tmp_path, days=4, backend=backend, answers_per_version=5)
    assert (tmp_path / "delta_4").stat().st_size > 0


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_twenty_deltas_under_load(server, tmp_path, monkeypatch):
    """A hundred thousand requests, as fast as three clients ask."""
    monkeypatch.setattr("tests.triton.test_deltas_served.NAME", "often")
    apply_deltas(server, tmp_path, 21, "native", answers_per_version=100_000 // 63, pause_s=0)
