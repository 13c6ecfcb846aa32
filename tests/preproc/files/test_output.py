# SPDX-License-Identifier: Apache-2.0
"""Outputs that cannot be renamed, hold other files, or are links; publishing that is killed."""

import os
import shutil
from pathlib import Path

import pytest

from preproc.files import output as dataset_output
from preproc.files.errors import PreprocError
from preproc.files.workspace import Workspace
from recsys.data.manifest import Manifest, file_checksum
from tests.harness import assert_tells, refusal
from tests.mounts import mounted, tmpfs
from tests.preproc.clicks.rows import run, stopped, write_days
from tests.preproc.programs import called
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

RATINGS = "".join(
    f"{user}::{item}::5::{item}\n" for user in range(1, 9) for item in range(user, user + 6)
)


@pytest.fixture(scope="module")
def expected(days, tmp_path_factory) -> Manifest:
    return run(days, tmp_path_factory.mktemp("expected") / "made")


def assert_dataset(folder: Path, expected: Manifest, *others: str) -> None:
    """Checks the bytes of a dataset, and what else lies in its folder."""
    assert Manifest.load(folder).files == expected.files
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    missing = expected.files.keys() - present
    assert not missing
    folders = {path.parent.as_posix() for path in map(Path, expected.files)} | {"parquet"}
    assert present - expected.files.keys() - folders == {"manifest.json", *others}


def test_mount_point(days, expected, tmp_path):
    """A volume of a container, alone and where a dataset lies in it already."""
    with tmpfs(tmp_path / "volume", "16m") as volume:
        (volume / "lost+found").mkdir()
        paths = (f"--input={days}", f"--output={volume}")
        called("clicks", *paths)
        assert_dataset(volume, expected, "lost+found")
        assert_tells(called("clicks", *paths, status=2), volume, "--overwrite")
        called("clicks", *paths, "--overwrite", "--format=split,parquet")
        assert (volume / "parquet" / "train" / "part_00000.parquet").is_file()
        called("clicks", *paths, "--overwrite")
        assert_dataset(volume, expected, "lost+found")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["volume"]


def test_mount_of_the_same_file_system(days, expected, tmp_path):
    (tmp_path / "host").mkdir()
    with mounted(tmp_path / "volume", "--bind", str(tmp_path / "host")) as volume:
        called("clicks", f"--input={days}", f"--output={volume}")
        assert_dataset(volume, expected)


def test_ratings_and_generated_files_on_a_mount_point(tmp_path, rough_calibration):
    with tmpfs(tmp_path / "volume", "16m") as volume:
        called("generate_criteo", f"--output={volume}", "--rows=200", "--days=2")
        assert (volume / "day_1").is_file()
        sizes = ("--users=30", "--items=30", "--interactions=300")
        called("generate_ratings", f"--output={volume / 'r.csv'}", *sizes)
        assert (volume / "r.csv").is_file()
    (tmp_path / "ratings.dat").write_text(RATINGS)
    with tmpfs(tmp_path / "other", "16m") as volume:
        paths = (f"--input={tmp_path / 'ratings.dat'}", f"--output={volume}")
        called("movielens", *paths, "--min_item_count=0")
        assert Manifest.load(volume).kind == "sequences"
        called("movielens", *paths, "--overwrite")
        assert [p for p in volume.iterdir() if p.name[0] == "."] == []


def test_link_is_written_through(days, expected, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/dataset")
    for flag in ((), ("--overwrite",)):
        called("clicks", f"--input={days}", f"--output={tmp_path / 'link'}", *flag)
        assert (tmp_path / "link").is_symlink()
        assert_dataset(tmp_path / "disk" / "dataset", expected)
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["dataset"]


def test_overwrite_keeps_and_names_other_files(days, expected, tmp_path):
    made = tmp_path / "made"
    run(write_days(tmp_path / "other", rows=90, seed=3), made, format=("split", "parquet"))
    (made / "checkpoints").mkdir()
    (made / "checkpoints" / "weights").write_text("keep")
    (made / "parquet" / "notes.txt").write_text("keep")
    (made / ".gitignore").write_text("keep")
    said = called("clicks", f"--input={days}", f"--output={made}", "--overwrite")
    kept = (".gitignore", "checkpoints/weights", "parquet/notes.txt")
    assert_tells(said, made, 3, ", ".join(kept))
    assert_dataset(made, expected, *kept, "checkpoints")


def test_dataset_without_a_manifest_keeps_what_the_layout_does_not_know(days, expected, tmp_path):
    made = tmp_path / "made"
    run(days, made)
    (made / "manifest.json").unlink()
    (made / "train" / "weights.bin").write_text("keep")
    run(days, made, overwrite=True)
    assert_dataset(made, expected, "train/weights.bin")


def test_folder_of_the_dataset_on_another_disk(days, expected, tmp_path):
    made = tmp_path / "made"
    run(days, made)
    with tmpfs(tmp_path / "disk", "16m") as disk:
        shutil.rmtree(made / "train")
        (made / "train").symlink_to(disk)
        run(days, made, overwrite=True)
        assert (made / "train").is_symlink()
        for name, file in expected.files.items():
            assert file_checksum(made / name) == file["xxh3_128"]


def test_file_in_the_place_of_a_folder_is_refused_before_the_work(days, tmp_path):
    made = tmp_path / "made"
    run(days, made)
    shutil.rmtree(made / "test")
    (made / "test").write_text("my test plan")
    error = called("clicks", f"--input={days}", f"--output={made}", "--overwrite", status=2)
    assert_tells(error, "--output", f"{made}: test")
    assert (made / "test").read_text() == "my test plan"


@pytest.mark.parametrize("ending", ["work", "staging"])
def test_folders_of_the_user_beside_the_output_are_kept(days, tmp_path, ending):
    own = tmp_path / f"made.{ending}" / "chapter"
    own.mkdir(parents=True)
    (own / "thesis.txt").write_text("keep")
    error = called("clicks", f"--input={days}", f"--output={tmp_path / 'made'}", status=2)
    assert_tells(error, tmp_path / f"made.{ending}", f"--output {tmp_path / 'made'}")
    assert (own / "thesis.txt").read_text() == "keep"


@pytest.mark.parametrize("length", [250, 300])
def test_name_that_leaves_no_room_for_the_work_folders(days, tmp_path, length):
    error = called("clicks", f"--input={days}", f"--output={tmp_path / ('x' * length)}", status=2)
    assert error.startswith(f"error: --output {tmp_path / 'xxx'}")
    assert "(File name too long)" in error


def test_stopped_while_the_folder_is_filled(days, expected, tmp_path):
    """At no moment a mixture passes for a dataset, and the next run ends what was begun."""
    other = write_days(tmp_path / "other", rows=90, seed=3)
    for moves in (0, 1, 40, 85, len(expected.files) - 1, len(expected.files)):
        made = tmp_path / f"made_{moves}"
        run(other, made, format=("split", "parquet"))
        (made / "notes.txt").write_text("keep")
        with stopped(dataset_output, "_move", after=moves):
            run(days, made, overwrite=True)
        assert not (made / "manifest.json").is_file()
        if any((made / name).exists() for name in dataset_output.MARKERS):
            assert all((made / name).is_file() for name in expected.files if ".bin" in name)
        with refusal(made, kind=PreprocError, settings=("output", "overwrite")):
            run(days, made)
        assert_dataset(made, expected, "notes.txt")
        assert not (tmp_path / f"made_{moves}.staging").exists()


def test_stopped_before_the_work_folders_in_the_output_are_gone(days, expected, tmp_path):
    """They are found again, whatever the working folder."""
    made = tmp_path / "made"
    made.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        with stopped(Workspace, "publish"):
            run(days, Path())
    assert (made / dataset_output.STAGING_INSIDE).is_dir()
    run(days, made)
    assert_dataset(made, expected)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_rights_are_the_umask(tmp_path, days, umask):
    made = tmp_path / "made"
    before = os.umask(umask)
    try:
        run(days, made, format=("split", "parquet"))
    finally:
        os.umask(before)
    modes = {p.stat().st_mode & 0o777 for p in made.rglob("*") if p.is_file()}
    assert modes == {0o666 & ~umask}
    assert {p.stat().st_mode & 0o777 for p in made.rglob("*") if p.is_dir()} == {0o777 & ~umask}
