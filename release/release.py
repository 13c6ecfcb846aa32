# SPDX-License-Identifier: Apache-2.0
"""Checks and checksums of a release.

`make release` runs `check` before it builds and `sign_off` after it has built.

    python release/release.py check          version, changelog, tag and working tree agree
    python release/release.py notes          print the changelog of this version
    python release/release.py sign_off DIST  SHA256SUMS and notes of the files in DIST

CONTRIBUTING.md has the steps of a release. SIGN_KEY names a key of GnuPG that signs SHA256SUMS.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+)(?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """A release that is not ready, with what to do about it."""


def version_of(repository: Path) -> str:
    """Returns `__version__` of the library, read without importing it."""
    file = repository / "recsys" / "__init__.py"
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return str(ast.literal_eval(node.value))
    raise ReleaseError(f"{file} has no line `__version__ = ...`")


def changelog_sections(changelog: Path) -> dict[str, tuple[str | None, str]]:
    """Returns date (or None) and text of a changelog by version."""
    text = changelog.read_text()
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading["version"]: (heading["date"], text[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    }


def notes_of(repository: Path) -> str:
    """Returns the changelog of the version that the sources have.

    Raises:
        ReleaseError: it has no section, date or text, or `## Unreleased` has changes.
    """
    changelog, version = repository / "CHANGELOG.md", version_of(repository)
    sections = changelog_sections(changelog)
    if version not in sections:
        raise ReleaseError(
            f"{changelog} has no heading `## {version} - YYYY-MM-DD`: rename `## Unreleased`, or"
            " correct __version__ in recsys/__init__.py"
        )
    if sections.get("Unreleased", (None, ""))[1]:
        raise ReleaseError(
            f"{changelog} has changes under `## Unreleased`, which {version} would leave out:"
            " name their version there and in recsys/__init__.py"
        )
    date, text = sections[version]
    if date is None or not text:
        raise ReleaseError(f"{changelog}: `## {version}` needs ` - YYYY-MM-DD` and text")
    return text


def git(repository: Path, *arguments: str) -> str:
    """Returns the output of a git command in the repository."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def check(repository: Path) -> str:
    """Returns the version to release.

    Raises:
        ReleaseError: there are uncommitted changes, the changelog does not match, or the tag is on
            another commit.
    """
    notes_of(repository)
    if changed := git(repository, "status", "--porcelain"):
        raise ReleaseError(f"uncommitted changes would be released:\n{changed}\nCommit them first")
    version = version_of(repository)
    tag, head = f"v{version}", git(repository, "rev-parse", "HEAD")
    if git(repository, "tag", "--list", tag):
        tagged = git(repository, "rev-parse", f"{tag}^{{commit}}")
        if tagged != head:
            raise ReleaseError(
                f"tag {tag} is commit {tagged[:12]}, HEAD is {head[:12]}: check the tag out, or"
                " choose the next version"
            )
    return version


def metadata_of(wheel: Path) -> Metadata:
    """Returns the core metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name))


def check_bill_of_materials(file: Path, wheel: Path) -> None:
    """Checks a CycloneDX file against the wheel that it describes.

    Raises:
        ReleaseError: it describes another version, or lists a requirement without a version.
    """
    metadata, bill = metadata_of(wheel), json.loads(file.read_text())
    versions = {canonicalize_name(c["name"]): c.get("version") for c in bill["components"]}
    if versions.get(canonicalize_name(metadata.name)) != str(metadata.version):
        raise ReleaseError(f"{file} does not list {metadata.name} {metadata.version}")
    for requirement in metadata.requires_dist or ():
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and not versions.get(canonicalize_name(requirement.name)):
            raise ReleaseError(
                f"{file} names no version of {requirement.name}, which {wheel.name} requires"
            )


def published_files(folder: Path, version: str) -> list[Path]:
    """Returns the sdist, wheels and bill of materials of a version.

    Raises:
        ReleaseError: one is missing, or the folder also has files of another version.
    """
    stem = f"recsys_recipes-{version}"
    wanted = (".tar.gz", "-py3-none-any.whl", "-py3-none-manylinux*.whl", ".cdx.json")
    files: list[Path] = []
    for ending in wanted:
        matching = sorted(folder.glob(stem + ending))
        if not matching:
            raise ReleaseError(f"{folder} has no {stem}{ending}: run `make release`")
        files += matching
    if others := {p.name for p in folder.glob("recsys_recipes-*")} - {p.name for p in files}:
        raise ReleaseError(f"{folder} also has {', '.join(sorted(others))}: remove them")
    return files


def sign_off(folder: Path, repository: Path, key: str | None) -> list[Path]:
    """Writes notes and checksums; returns all files to publish.

    Args:
        folder: sdist, wheels and bill of materials.
        repository: sources they were built from.
        key: GnuPG's name of a key that signs the checksums, if any.

    Raises:
        ReleaseError: a file is missing or does not belong to the version.
    """
    version = version_of(repository)
    files = published_files(folder, version)
    for wheel in (file for file in files if file.suffix == ".whl"):
        check_bill_of_materials(files[-1], wheel)
    notes = folder / "notes.md"
    notes.write_text(notes_of(repository) + "\n")
    sums = folder / SUMS
    files.append(notes)
    sums.write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files))
    files.append(sums)
    signature = sums.with_suffix(".asc")
    signature.unlink(missing_ok=True)
    if key:
        gpg = ["gpg", "--batch", "--armor", "--local-user", key, "--output", str(signature)]
        subprocess.run([*gpg, "--detach-sign", str(sums)], check=True)
        files.append(signature)
    return files


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> int:
    """Runs one command; returns 1 if the release is not ready."""
    parser = argparse.ArgumentParser(description="Checks and signs off a release.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="version, changelog, tag and working tree agree")
    commands.add_parser("notes", help="print the changelog of this version")
    commands.add_parser("sign_off", help="write checksums and notes").add_argument(
        "folder", type=Path, help="where the wheels are"
    )
    arguments = parser.parse_args()
    try:
        if arguments.command == "check":
            print(f"recsys-recipes {check(REPOSITORY)} can be built")
        elif arguments.command == "notes":
            print(notes_of(REPOSITORY))
        else:
            for file in sign_off(arguments.folder, REPOSITORY, os.environ.get("SIGN_KEY")):
                print(f"{file.stat().st_size:>11,} bytes  {file}")
    except ReleaseError as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
