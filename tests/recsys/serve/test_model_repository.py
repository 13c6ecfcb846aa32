# SPDX-License-Identifier: Apache-2.0
"""A model repository gets a version whole or not at all, and no server sees the half of one."""

import fcntl
import multiprocessing
import os
import resource
import signal

import numpy as np
import pytest
from safetensors.numpy import save_file

from recsys.serve.config_pbtxt import ConfigError
from recsys.serve.versions.repository import LOCK_FILE, ModelRepository, RepositoryError
from tests.harness import PATIENCE_S, no_locks, refusal


def tree(root):
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != LOCK_FILE
    }


def add(repository, name="m", version=None, text="weights", config="config"):
    with repository.staged_version(name, version) as staged:
        (staged.folder / "weights").write_text(text)
        return staged.install(config, {"cpu": "on a cpu"})


@pytest.fixture
def repository(tmp_path):
    return ModelRepository(tmp_path / "models")


def test_versions_follow_each_other(repository):
    assert repository.versions("m") == []
    assert add(repository, text="a") == repository.root / "m" / "1"
    assert add(repository, text="b") == repository.root / "m" / "2"
    add(repository, version=7)
    add(repository, text="c", config="newer")
    assert repository.versions("m") == [1, 2, 7, 8]
    assert tree(repository.root) == {
        "m/1/weights": "a",
        "m/2/weights": "b",
        "m/7/weights": "weights",
        "m/8/weights": "c",
        "m/config.pbtxt": "newer",
        "m/configs/cpu.pbtxt": "on a cpu",
    }


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_everything_as_it_was(repository, tmp_path, is_new, error):
    add(repository, "other" if is_new else "m")
    before = tree(tmp_path)

    def fail():
        with repository.staged_version("m", None) as staged:
            (staged.folder / "weights").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert tree(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models"]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_server_never_sees_what_is_not_complete(repository, is_new):
    if not is_new:
        add(repository)
    with repository.staged_version("m", None) as staged:
        (staged.folder / "weights").write_text("half")
        assert [p.name for p in repository.root.iterdir() if p.is_dir()] == ["m"][is_new:]
        assert repository.versions("m") == [1][is_new:]
        staged.install("config", {})
        assert repository.versions("m")[-1] == staged.version


def test_a_mounted_repository_has_nothing_beside_it(repository, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with repository.staged_version("m", None) as staged:
        assert staged.folder.is_relative_to(repository.root)
        (staged.folder / "weights").write_text("whole")
        assert repository.versions("m") == []
        assert not list(repository.root.rglob("config.pbtxt"))
        staged.install("config", {})
    assert tree(repository.root) == {"m/1/weights": "whole", "m/config.pbtxt": "config"}
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("name", "version", "kind", "facts"),
    [
        ("m", 1, RepositoryError, ["`version` 1"]),
        ("m", 0, RepositoryError, ["`version`", 2**63 - 1, 0]),
        ("m", 2**63, RepositoryError, ["`version`", 2**63 - 1, 2**63]),
        ("full", None, RepositoryError, ["`version`", 2**63 - 1, 2**63]),
        ("../m", 1, ConfigError, ["`name`"]),
    ],
)
def test_wrong_versions_and_names_are_refused(repository, name, version, kind, facts):
    add(repository)
    add(repository, "full", 2**63 - 1)
    with refusal(*facts, kind=kind), repository.staged_version(name, version):
        pass
    assert tree(repository.root)["m/1/weights"] == "weights"


def test_one_deployment_at_a_time(repository):
    with (
        repository.staged_version("m", None),
        refusal(repository.root, kind=RepositoryError),
        repository.staged_version("n", None),
    ):
        pass
    add(repository, "n")


def test_a_repository_on_a_file_system_without_locks(repository, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    add(repository)


def test_a_repository_that_cannot_be_written_says_so(repository):
    repository.root.write_text("a file")
    with refusal(repository.root, kind=RepositoryError):
        add(repository)


def test_weights_that_cannot_be_written_are_told(repository, tmp_path):
    """The library that writes them has an error of its own."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with (
            refusal("`repository`", repository.root, kind=RepositoryError),
            repository.staged_version("m", None) as staged,
        ):
            save_file({"weights": np.ones(10_000)}, staged.folder / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


def _die_while_staging(root):
    with ModelRepository(root).staged_version("m", None) as staged:
        (staged.folder / "weights").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def _killed_while_staging(repository):
    process = multiprocessing.get_context("fork").Process(
        target=_die_while_staging, args=(repository.root,)
    )
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("is_new", [True, False])
def test_after_a_kill_the_next_deployment_cleans_up(repository, tmp_path, is_new):
    if not is_new:
        add(repository)
    before = tree(repository.root)
    _killed_while_staging(repository)
    assert tree(repository.root) == before
    assert repository.staging().exists()
    with repository.staged_version("other", None):
        assert repository.staging().exists()
        repository.remove_leftovers()  # of a living deployment nothing
        assert repository.staging().exists()
    assert [p.name for p in tmp_path.iterdir()] == ["models"]
    version = add(repository, text="whole")
    assert (version / "weights").read_text() == "whole"


def test_after_a_kill_a_refused_deployment_cleans_up_too(repository, tmp_path):
    """Killed after its version had appeared, the same command is refused."""
    add(repository)
    _killed_while_staging(repository)
    with refusal("`version`", kind=RepositoryError), repository.staged_version("m", 1):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["models"]


def test_a_configuration_that_stays_the_same_is_not_written(repository):
    add(repository)
    written = repository.config_file("m").stat().st_mtime_ns
    add(repository)
    assert repository.config_file("m").stat().st_mtime_ns == written
