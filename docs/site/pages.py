# SPDX-License-Identifier: Apache-2.0
"""Pages of the site: the documents, under their paths in the repository.

MkDocs wants all pages in one folder. Ours lie where code hosts show them, so this hook hands them
over one by one: README at the root, the documents under docs/, and their links hold in both.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
BESIDE_DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "triton/README.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Gives headings the anchors of code hosts."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replaces the files of docs/ by those of the site."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = [
        File.generated(config, f"docs/{file.src_uri}", abs_src_path=file.abs_src_path)
        for file in (
            *(files.documentation_pages() + files.media_files()),
            *(files.css_files() + files.javascript_files()),
        )
        if file.src_dir == config.docs_dir
    ]
    ours += [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in BESIDE_DOCS]
    return Files([*theme, *ours])


def slug(heading: str, separator: str) -> str:
    """Returns the anchor of a heading, as code hosts name it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
