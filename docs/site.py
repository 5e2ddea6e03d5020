"""The hooks of mkdocs: pages from the root of the repository, and one page of all commands."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from securemedian import cli

ROOT = Path(__file__).parent.parent
# pages that stand in the root, where people look for them first
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "EXPERIMENTS.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the page of commands."""
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    files.append(File.generated(config, "commands.md", content=_commands()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links out of docs/ end where the site has what they mean."""
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, PAGES))})", r"](\1", markdown)


def _commands() -> str:
    """Return the help of every verb as a page."""
    return "\n\n".join(
        [
            "# Commands",
            *(f"## {title}\n\n```text\n{text}\n```" for title, text in cli.helps().items()),
        ]
    )
