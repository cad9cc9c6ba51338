"""`flatout docs`: the pages of the documentation."""

from __future__ import annotations

import msgspec

from flatout.errors import UsageError
from flatout.system import doc_pages, pager
from flatout.system.store import error_pages


class DocPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page by its name. text: in Markdown; empty in a list of pages."""

    page: str
    title: str
    text: str = ""


def list_pages() -> list[DocPage]:
    """All pages, with their titles."""
    pages = doc_pages.list_pages()
    return [DocPage(page=name, title=doc_pages.title_of(path)) for name, path in pages.items()]


def read_page(name: str) -> DocPage:
    """A page, with commands in place of its links.

    Raises:
        UsageError: unknown-page.
    """
    try:
        page, text = doc_pages.read_page(name)
    except UsageError as error:
        if name not in error_pages.read_pages():
            raise
        raise UsageError(error.rule, error.problem, fix=f"flatout explain {name}") from error
    return DocPage(page=page, title=text.partition("\n")[0].lstrip("# "), text=text)


def show_paged(text: str) -> bool:
    """Shows a text in a pager; False where there is none."""
    return pager.page(text)
