# SPDX-License-Identifier: Apache-2.0
"""Pages of the site: the documents, under their paths in the repository.

MkDocs wants all pages in one folder. Ours lie where code hosts show them, so this hook hands them
over one by one: README at the root, the documents under docs/, and their links hold in both. A
notebook is a page too, with the outputs that it was stored with.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
BESIDE_DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "triton/README.md")


class NotebookFile(File):
    """A notebook, which links name by its own path."""

    def is_documentation_page(self) -> bool:
        """Tells MkDocs to make a page of it."""
        return True


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
        if file.src_dir == config.docs_dir and not file.src_uri.endswith(".ipynb")
    ]
    ours += [
        NotebookFile.generated(
            config, str(path.relative_to(ROOT)), content=markdown_of(json.loads(path.read_text()))
        )
        for path in sorted(Path(config.docs_dir).rglob("*.ipynb"))
    ]
    ours += [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in BESIDE_DOCS]
    return Files([*theme, *ours])


def slug(heading: str, separator: str) -> str:
    """Returns the anchor of a heading, as code hosts name it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def markdown_of(notebook: dict[str, Any]) -> str:
    """Returns the cells of a notebook, with their outputs as texts."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = "".join(output["data"]["text/plain"] if "data" in output else output["text"])
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)
