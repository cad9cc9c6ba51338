"""The text on each error in docs/errors.md, which comes along with flatout."""

from __future__ import annotations

import re
from collections.abc import Collection

from flatout.system import atomic_files
from flatout.system.doc_pages import docs_folder, list_pages, with_commands

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")


def read_pages() -> dict[str, str]:
    """The sections on errors and warnings, by their ids."""
    path = docs_folder() / "errors.md"
    with atomic_files.mapped_os_errors(path):
        return parse_pages(path.read_text(encoding="utf-8"), list_pages())


def parse_pages(text: str, pages: Collection[str] = ()) -> dict[str, str]:
    """The sections of a page in Markdown whose headings are ids; links become commands.

    Args:
        text: the page.
        pages: the names of all pages of the documentation.
    """
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {
        heading: with_commands(section, "errors", pages).strip()
        for heading, section in zip(parts[1::2], parts[2::2], strict=True)
        if _ID.fullmatch(heading)
    }
