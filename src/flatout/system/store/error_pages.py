"""The text on each error, and on each advice of a profile, in the documentation."""

from __future__ import annotations

import re
from collections.abc import Collection

from flatout.system import atomic_files
from flatout.system.doc_pages import docs_folder, list_pages, with_commands

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
# | `an-id`, `another-id` | what it means | what to do |
_ADVICE_ROW = re.compile(
    r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \| (.+?) \| (.+?) \|$", flags=re.MULTILINE
)


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


def read_advice() -> dict[str, str]:
    """What docs/profile.md says of each advice, by its id."""
    path = docs_folder() / "profile.md"
    with atomic_files.mapped_os_errors(path):
        return parse_advice(path.read_text(encoding="utf-8"), list_pages())


def parse_advice(text: str, pages: Collection[str] = ()) -> dict[str, str]:
    """The rows of a page's tables whose first column has ids; links become commands.

    Args:
        text: the page.
        pages: the names of all pages of the documentation.
    """
    found: dict[str, str] = {}
    for ids, meaning, fix in _ADVICE_ROW.findall(text):
        section = f"**Meaning.** {meaning}.\n\n**What to do.** {fix}."
        for name in re.findall(r"`(.+?)`", ids):
            found[name] = with_commands(section, "profile", pages)
    return found
