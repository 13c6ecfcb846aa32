# SPDX-License-Identifier: Apache-2.0
"""What `make release` refuses, and the files that it signs off."""

import json
import shutil
import subprocess
import zipfile

import pytest

from tests import harness
from tests.tools import needs

CHANGELOG = """# Changelog

## Unreleased

## 1.2.0 - 2026-11-25

### Added

- Something new.

## 1.1.0 - 2026-01-31

### Fixed

- Something old.
"""
REQUIREMENTS = 'numpy>=1.26\nRequires-Dist: PyYAML>=6\nRequires-Dist: pytest; extra == "dev"'
WHEELS = ("py3-none-any", "py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64")


class Repository:
    """A git repository with a version, its changelog, and the program under test."""

    def __init__(self, folder):
        self.folder, self.dist = folder, folder / "dist"
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Maintainer")
        self.git("config", "user.email", "maintainer@example.com")
        for name in ("release", "recsys"):
            (folder / name).mkdir()
        shutil.copy(harness.REPOSITORY / "release" / "release.py", folder / "release")
        (folder / ".gitignore").write_text("dist/\n")
        self.commit(version="1.2.0", changelog=CHANGELOG)

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self, version, changelog):
        (self.folder / "recsys" / "__init__.py").write_text(f'__version__ = "{version}"\n')
        (self.folder / "CHANGELOG.md").write_text(changelog)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", version)

    def run(self, *arguments, status=0, **env):
        return harness.python(
            "release/release.py", *arguments, folder=self.folder, status=status, **env
        )

    def build(self, version="1.2.0", components=("numpy", "pyyaml"), subject=None, beside=None):
        """Writes what the build makes: an sdist, two wheels and a bill of materials."""
        self.dist.mkdir()
        stem = f"recsys_recipes-{version}"
        for each in {version, beside or version}:
            (self.dist / f"recsys_recipes-{each}.tar.gz").write_bytes(b"sources")
        for tags in WHEELS:
            with zipfile.ZipFile(self.dist / f"{stem}-{tags}.whl", "w") as wheel:
                wheel.writestr(
                    f"{stem}.dist-info/METADATA",
                    f"Metadata-Version: 2.4\nName: recsys-recipes\nVersion: {version}\n"
                    f"Requires-Dist: {REQUIREMENTS}\n",
                )
        listed = dict.fromkeys(components, "9.9") | {"recsys-recipes": subject or version}
        bill = [{"name": name, "version": version} for name, version in listed.items()]
        (self.dist / f"{stem}.cdx.json").write_text(json.dumps({"components": bill}))


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_a_dated_version_in_a_clean_tree_can_be_built(repository):
    assert "recsys-recipes 1.2.0" in repository.run("check").stdout
    assert repository.run("notes").stdout == "### Added\n\n- Something new.\n"
    repository.git("tag", "v1.2.0")
    repository.run("check")


@pytest.mark.parametrize(
    ("version", "changelog", "fact"),
    [
        ("1.3.0", CHANGELOG, "## 1.3.0"),
        ("1.2.0", CHANGELOG.replace(" - 2026-11-25", ""), "YYYY-MM-DD"),
        ("1.2.0", CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- Later.\n"), "## Unreleased"),
    ],
)
def test_a_changelog_that_does_not_fit_the_version_is_refused(repository, version, changelog, fact):
    repository.commit(version, changelog)
    harness.assert_tells(repository.run("check", status=1).stderr, "CHANGELOG.md", fact)


def test_uncommitted_changes_and_a_tag_of_another_commit_are_refused(repository):
    (repository.folder / "forgotten.py").write_text("")
    assert "forgotten.py" in repository.run("check", status=1).stderr
    repository.git("tag", "v1.2.0")
    repository.git("add", ".")
    repository.git("commit", "--quiet", "--message", "later")
    harness.assert_tells(repository.run("check", status=1).stderr, "v1.2.0")


def test_sha256sum_accepts_what_was_signed_off_and_notices_a_changed_file(repository):
    repository.build()
    printed = repository.run("sign_off", "dist").stdout
    assert (repository.dist / "notes.md").read_text() == "### Added\n\n- Something new.\n"
    names = {path.name for path in repository.dist.iterdir()}
    assert all(name in printed for name in names)
    verify = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(verify, cwd=repository.dist, check=True, capture_output=True, text=True)
    assert done.stdout.count(": OK") == len(names) - 1
    (repository.dist / "recsys_recipes-1.2.0.tar.gz").write_bytes(b"other sources")
    assert subprocess.run(verify, cwd=repository.dist, capture_output=True).returncode == 1


@needs("GnuPG")
def test_the_checksums_are_signed_with_a_key(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpg")
    folder.chmod(0o700)
    home = {"GNUPGHOME": str(folder)}
    user = "maintainer@example.com"
    harness.run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", user, **home)
    repository.build()
    repository.run("sign_off", "dist", SIGN_KEY=user, **home)
    sums = repository.dist / "SHA256SUMS"
    harness.run("gpg", "--batch", "--verify", f"{sums}.asc", sums, **home)
    sums.write_text(sums.read_text().replace("0", "1"))
    harness.run("gpg", "--batch", "--verify", f"{sums}.asc", sums, status=1, **home)
    harness.run("gpgconf", "--kill", "all", **home)


@pytest.mark.parametrize(
    ("built", "fact"),
    [
        ({"version": "1.1.0"}, "recsys_recipes-1.2.0.tar.gz"),
        ({"subject": "1.1.0"}, "recsys-recipes 1.2.0"),
        ({"components": ["numpy"]}, "pyyaml"),
        ({"beside": "1.1.0"}, "recsys_recipes-1.1.0.tar.gz"),
    ],
)
def test_files_of_another_version_or_without_a_requirement_are_refused(repository, built, fact):
    repository.build(**built)
    harness.assert_tells(repository.run("sign_off", "dist", status=1).stderr.lower(), fact)
    assert not (repository.dist / "SHA256SUMS").exists()
