"""Pages in Markdown as they are shown: laid out on a terminal, as they are in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markdown import Markdown

from flatout.cli.render.show import make_console, print_command, print_lines
from flatout.setup.flatout.docs import DocPage, show_paged

# Longer lines are harder to read.
_WIDTH = 100


def print_pages(pages: Sequence[DocPage]) -> None:
    """The names of all pages, with their titles."""
    console = make_console()
    print_lines(console, [(page.page, page.title) for page in pages])
    console.print()
    print_command(console, "show a page", "flatout docs PAGE")


def print_document(text: str) -> None:
    """A page, in a pager where it is longer than the screen."""
    console = make_console()
    if not console.file.isatty():
        console.print(text.strip(), soft_wrap=True)
        return
    with console.capture() as captured:
        print_markdown(console, text)
    shown = captured.get()
    if shown.count("\n") < console.height or not show_paged(shown):
        console.file.write(shown)


def print_markdown(console: Console, text: str) -> None:
    """Markdown, wrapped once at the terminal's width; as it is in a pipe."""
    if not console.file.isatty():
        console.print(text.strip(), soft_wrap=True)
        return
    page = Markdown(text, hyperlinks=False, code_theme="ansi_dark")
    console.print(page, width=min(console.width, _WIDTH))
