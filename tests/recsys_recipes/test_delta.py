# SPDX-License-Identifier: Apache-2.0
"""Deltas: what changed between two versions makes the later one from the earlier, byte for byte."""

import itertools
import shutil
from pathlib import Path

import pytest

from preproc.clicks.job import semantics_of_schema
from preproc.clicks.serving.feature_file import (
    new_categories,
    with_categories,
    write_feature_file,
)
from recsys.serve.versions import delta as versions_delta
from recsys.serve.versions.policy import policy_of
from recsys_recipes.serving import deploy as deploy_program
from tests import harness
from tests.dlrm.conftest import DlrmProgram
from tests.dlrm.days import FIRST, write_logs
from tests.harness import assert_tells
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.passing_days import rules as eviction_rules
from tests.preproc.clicks.passing_days import write_day
from tests.preproc.clicks.rows import extend
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")


@pytest.fixture(scope="module")
def generations(tmp_path_factory) -> list[tuple[Path, Path]]:
    """(dataset, checkpoint) of two days."""
    root = tmp_path_factory.mktemp("generations")
    program, made = DlrmProgram(root), []
    for number, log in enumerate(write_logs(root / "logs", days=2)):
        extend(root / "days", log, FIRST)
        flags = ("--grow", "--batch_size=64", *(("--resume",) if number else ()))
        program.train(root / "days", root / "run", *flags)
        shutil.copytree(root / "run", root / f"run_{number}")
        made.append((root / "days" / f"day_{number:04d}", root / f"run_{number}"))
    return made


def deploy(repository: Path, *flags: object, status: int = 0) -> None:
    """Runs the deployer in this process."""
    assert harness.call(deploy_program, f"--repository={repository}", *flags) == status


def files(folder: Path) -> dict[str, bytes]:
    """Returns every file of a folder but Python's caches."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__" and path.name != ".deploy.lock"
    }


KINDS = {
    "python": ("--backend=python", "--raw"),
    "native": ("--backend=native", "--raw"),
    "ids": ("--backend=python",),
    "int8": ("--backend=python", "--quantize=int8"),
}


@pytest.fixture(params=KINDS)
def repositories(request, generations, tmp_path) -> tuple[Path, Path, Path]:
    """(repository with two versions, another with the first one, their delta)."""
    (first, earlier), (second, later) = generations
    here, there, delta = tmp_path / "here", tmp_path / "there", tmp_path / "changes"
    flags = KINDS[request.param]
    deploy(here, f"--checkpoint={earlier}", f"--dataset={first}", *flags)
    shutil.copytree(here, there)
    deploy(here, f"--checkpoint={later}", f"--dataset={second}", f"--delta={delta}")
    return here, there, delta


@pytest.fixture(params=[1 << 16, 7], ids=["one piece", "pieces of new rows only"])
def pieces(request, monkeypatch) -> None:
    """Tables are compared piece by piece; some pieces have no row of the earlier version."""
    monkeypatch.setattr(versions_delta, "_CHUNK_ROWS", request.param)


@pytest.mark.usefixtures("pieces")
def test_a_delta_gives_the_later_version(repositories):
    here, there, delta = repositories
    deploy(there, f"--apply={delta}")
    assert files(there) == files(here)


@pytest.mark.parametrize("repositories", ["native"], indirect=True)
def test_deltas_that_are_refused(repositories, capsys, tmp_path):
    here, there, delta = repositories

    def refused(repository: Path, path: Path, *facts: object) -> None:
        before = files(repository)
        deploy(repository, f"--apply={path}", status=2)
        assert_tells(capsys.readouterr().err, path, *facts)
        assert files(repository) == before

    refused(here, delta, here / "dlrm" / "2")
    damaged = tmp_path / "damaged"
    content = bytearray(delta.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    refused(there, damaged)
    cut = tmp_path / "cut"
    cut.write_bytes(delta.read_bytes()[:1000])
    refused(there, cut)
    other = tmp_path / "other"
    shutil.copytree(there, other)
    (other / "dlrm" / "1" / "probe.json").write_text("{}")
    refused(other, delta)
    refused(there, there / "dlrm" / "1" / "weights.safetensors")
    deploy(there, f"--apply={delta}")  # still possible


@pytest.mark.parametrize("repositories", ["native"], indirect=True)
@pytest.mark.parametrize("policy", ["latest:1", "specific:1"])
def test_a_delta_is_served_after_a_rollback_but_not_beside_a_pin(repositories, policy, capsys):
    _, there, delta = repositories
    shutil.copytree(there / "dlrm" / "1", there / "dlrm" / "2")
    deploy(there, f"--version_policy={policy}")
    if policy == "latest:1":
        deploy(there, "--rollback")
    capsys.readouterr()
    deploy(there, f"--apply={delta}")
    said = capsys.readouterr().out
    config = (there / "dlrm" / "config.pbtxt").read_text()
    assert policy_of(config) == policy
    if policy == "latest:1":
        assert "not served" not in said
    else:
        assert_tells(said, "--version_policy", "version 1")


def test_the_first_version_has_no_delta(generations, tmp_path, capsys):
    _, run = generations[0]
    flags = (f"--checkpoint={run}", f"--delta={tmp_path / 'delta'}")
    deploy(tmp_path / "models", *flags, status=2)
    assert_tells(capsys.readouterr().err, "--delta")
    assert not (tmp_path / "delta").exists()
    deploy(tmp_path / "models", f"--apply={tmp_path}", "--backend=native", status=2)
    assert_tells(capsys.readouterr().err, "--apply", "--repository", "--name")


def test_a_version_whose_delta_cannot_be_written_is_not_deployed(generations, tmp_path, capsys):
    """A version is never replaced, so the same command could not write its delta later."""
    (first, earlier), (second, later) = generations
    deploy(tmp_path / "models", f"--checkpoint={earlier}", f"--dataset={first}", "--raw")
    before = files(tmp_path)
    flags = (f"--checkpoint={later}", f"--dataset={second}", "--version=2")
    delta = tmp_path / "missing" / "delta"
    deploy(tmp_path / "models", *flags, f"--delta={delta}", status=2)
    assert_tells(capsys.readouterr().err, delta)
    assert files(tmp_path) == before
    delta.parent.mkdir()
    deploy(tmp_path / "models", *flags, f"--delta={delta}")
    assert delta.is_file()


def test_feature_files_grow_by_their_new_categories(tmp_path):
    """Texts, integers of 64 bits and hexadecimal categories, over several sizes of ids."""
    schema = schema_log.write_schema(tmp_path, defaults={"frequency_limit": 1})
    first = semantics_of_schema(schema, {"split_rows": (-1, 0, 0)})
    made = []
    for number, count in enumerate((40, 400, 3)):
        log = tmp_path / f"log_{number}.csv"
        log.write_bytes(schema_log.text_of(schema_log.rows(count, seed=number)))
        extend(tmp_path / "days", log, first, schema=schema)
        made.append(tmp_path / f"features_{number}")
        write_feature_file(tmp_path / "days" / f"day_{number:04d}", made[-1], "float32")
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        added = new_categories(made[earlier], made[later])
        with_categories(made[earlier], added, tmp_path / "grown")
        assert (tmp_path / "grown").read_bytes() == made[later].read_bytes()
    assert new_categories(made[1], made[0]) is None


@pytest.mark.parametrize("kind", ["Criteo", "texts"])
def test_a_feature_file_in_which_ids_are_reused(tmp_path, kind):
    """The file of each day, from that of the day before."""
    rules = {"split_rows": (-1, 0, 0), "evict_after": 1}
    columns = [{n: v for n, v in c.items() if n != "max_ids"} for c in schema_log.SCHEMA["columns"]]
    schema = schema_log.write_schema(tmp_path, columns=columns)
    made, num_reused = [], 0
    for number in range(4):
        if kind == "Criteo":
            log, first, of = write_day(tmp_path / "logs", number), eviction_rules(1), {}
        else:
            log, of = tmp_path / f"log_{number}.csv", {"schema": schema}
            log.write_bytes(schema_log.text_of(schema_log.rows(250, seed=number)))
            first = semantics_of_schema(schema, rules)
        extend(tmp_path / "days", log, first, **of)
        day = max((tmp_path / "days").iterdir())
        num_reused += sum(path.stat().st_size // 4 for path in day.rglob("reused_*.bin"))
        made.append(tmp_path / f"features_{number}")
        write_feature_file(day, made[-1], "float32")
    for earlier, later in itertools.pairwise(made):
        added = new_categories(earlier, later)
        with_categories(earlier, added, tmp_path / "grown")
        assert (tmp_path / "grown").read_bytes() == later.read_bytes()
    assert num_reused > 0
