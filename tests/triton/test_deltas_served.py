# SPDX-License-Identifier: Apache-2.0
"""Deltas applied beside a live server: no request fails, and no answer mixes two versions."""

import shutil

import numpy as np
import pytest

from recsys_recipes.serving.raw_rows import ServedRawClicks
from tests.dlrm.conftest import make_program
from tests.dlrm.days import FIRST, write_logs
from tests.preproc.clicks.rows import extend, without_labels
from tests.tools import needs
from tests.triton.conftest import deploy, deployer
from tests.triton.test_reload import Flow, addresses

pytestmark = [pytest.mark.triton_server, needs("compiled Criteo kernel", "compiled Triton backend")]

DAYS = 4


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Checkpoints after each day, with the day that they were trained on last; some lines."""
    root = tmp_path_factory.mktemp("days")
    train, made = make_program(root), []
    logs = write_logs(root / "logs", days=DAYS)
    for number, log in enumerate(logs):
        extend(root / "days", log, FIRST)
        flags = ("--grow", "--batch_size=64", *(("--resume",) if number else ()))
        paths = (f"--dataset={root / 'days'}", f"--save_checkpoint_path={root / 'run'}")
        train(*paths, *flags)
        shutil.copytree(root / "run", root / f"run_{number}")
        made.append((root / f"run_{number}", root / "days" / f"day_{number:04d}"))
    return made, without_labels(logs[-1].read_bytes()).splitlines()[:8]


@pytest.mark.parametrize("backend", ["native", "python"])
def test_each_answer_is_whole_one_versions(server, days, tmp_path, backend):
    made, lines = days
    name, here = f"daily_{backend}", tmp_path / "here"
    deltas = []
    for number, (run, day) in enumerate(made):
        flags = [f"--name={name}", f"--dataset={day}", "--raw", f"--backend={backend}"]
        if number:
            deltas.append(tmp_path / f"delta_{number}")
            flags.append(f"--delta={deltas[-1]}")
        deploy(run, here, *flags)
        if number == 0:
            shutil.copytree(here / name, server.repository / name)
            server.load(name)
    request = {"line": np.array(lines, np.object_)[:, None]}
    offline = []
    for version in range(1, DAYS + 1):
        served = ServedRawClicks.open(here / name / str(version), None)
        answer = served.respond(request)
        offline.append(answer["logit"])
    with Flow(addresses(server, name), request) as flow:
        flow.wait_for_more()
        for number, delta in enumerate(deltas, start=2):
            assert deployer(server.repository, f"--apply={delta}", f"--name={name}") == 0
            server.load(name)
            assert server.is_ready(name, number)
            flow.wait_for_more()
    assert flow.failures == []
    for answers in flow.answers:
        whole = [
            [i for i, of in enumerate(offline) if np.allclose(answer, of, atol=1e-6)]
            for answer in answers
        ]
        assert all(len(versions) == 1 for versions in whole)
        order = [versions[0] for versions in whole]
        assert order == sorted(order)
        assert set(order) == set(range(DAYS))
