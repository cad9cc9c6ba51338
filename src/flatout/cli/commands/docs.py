"""`flatout docs`: the documentation in the terminal."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("docs")
@click.argument("page", required=False, metavar="[PAGE]")
@json_document
def command(page: str | None, is_json: bool) -> None:
    """Show a page of the documentation; without PAGE, list them.

    In a pipe it is Markdown. The page of an error or a rule is shown by `flatout explain ID`.
    """
    from flatout.cli.render import show, show_docs
    from flatout.setup.flatout import docs

    if page is None:
        pages = docs.list_pages()
        if is_json:
            show.print_json({"pages": [{"page": item.page, "title": item.title} for item in pages]})
        else:
            show_docs.print_pages(pages)
        return
    document = docs.read_page(page)
    if is_json:
        show.print_json(document)
    else:
        show_docs.print_document(document.text)
