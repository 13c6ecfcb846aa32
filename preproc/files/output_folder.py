# SPDX-License-Identifier: Apache-2.0
"""The folder that a run is to write: what is refused before any work."""

from pathlib import Path

from preproc.files.errors import PreprocError
from recsys.data.feature_spec import SPEC_FILE
from recsys.data.manifest import MANIFEST_FILE


def check_output(
    output_path: Path, input_path: Path, work_dir: Path | None, *, overwrite: bool
) -> None:
    """Refuses an output that must not be written.

    Args:
        output_path: the dataset folder to make.
        input_path: the raw file or folder.
        work_dir: folder for work state, if the user named one.
        overwrite: a dataset that is there may be replaced.

    Raises:
        PreprocError: writing would destroy something, or mix with the input.
    """
    output, source = output_path.resolve(), input_path.resolve()
    if output.exists() and not output.is_dir():
        raise PreprocError(f"--output {output_path}: is a file; name a folder that does not exist")
    folders = {"--output": output}
    if work_dir is not None:
        folders["--work_dir"] = work_dir.resolve()
    for flag, folder in folders.items():
        if folder == source or source in folder.parents:
            raise PreprocError(f"{flag} {folder}: lies inside --input {source}; choose another")
    if output in source.parents:
        raise PreprocError(f"--output {output}: contains --input {source}; choose another")
    work = folders.get("--work_dir")
    if work is not None and (work == output or output in work.parents):
        raise PreprocError(f"--work_dir {work}: lies inside --output; choose another")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not overwrite:
        raise PreprocError(
            f"--output {output_path}: already exists; add --overwrite to replace it when the new "
            "dataset is complete, or choose another folder"
        )
    if not any((output / name).is_file() for name in (MANIFEST_FILE, SPEC_FILE)):
        raise PreprocError(
            f"--output {output_path}: is not a dataset (no {MANIFEST_FILE}, no {SPEC_FILE}), so "
            "--overwrite will not remove it; choose another folder"
        )


def existing_folder(folder: Path) -> Path:
    """Returns the folder itself or the nearest one above it that exists."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
