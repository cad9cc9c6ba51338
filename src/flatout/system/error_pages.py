"""What the documents say of each error: docs/errors.md, which comes along with flatout."""

from __future__ import annotations

import re
from pathlib import Path

from flatout.system import store

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\)")


def read_pages() -> dict[str, str]:
    """The sections on errors and warnings, by their ids, as they are read without links."""
    import flatout

    package = Path(flatout.__file__).parent
    # In a checkout it lies among the documents.
    places = (package / "errors.md", package.parents[1] / "docs" / "errors.md")
    path = next((one for one in places if one.is_file()), places[0])
    with store.mapped_os_errors(path):
        return parse_pages(path.read_text(encoding="utf-8"))


def parse_pages(text: str) -> dict[str, str]:
    """The sections of a page in Markdown whose headings are ids; links become their text."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {
        heading: _LINK.sub(r"\1", section).strip()
        for heading, section in zip(parts[1::2], parts[2::2], strict=True)
        if _ID.fullmatch(heading)
    }
