"""The documentation, which comes along with flatout: its pages by name, as Markdown.

In a checkout they are in `docs`, next to the README; in an installed flatout inside the package.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from flatout.errors import UsageError, nearest
from flatout.system import atomic_files

README = "readme"
# The pages of errors and of rules are shown by `flatout explain`.
_ERRORS = "errors"
_RULES = "rules"
# Blocks and code are left as they are: they may look like links.
_BLOCK = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(`[^`\n]*`)|!?\[([^\]]*)\]\(([^)\s]*)\)")


def docs_folder() -> Path:
    """The folder of the pages."""
    import flatout

    package = Path(flatout.__file__).parent
    return next(
        (folder for folder in (package / "docs",) if folder.is_dir()), package.parents[1] / "docs"
    )


def list_pages() -> dict[str, Path]:
    """All pages by their names, the README first.

    Raises:
        RunFailed: file-not-accessible.
    """
    folder = docs_folder()
    readme = next((root / "README.md" for root in (folder, folder.parent)
                   if (root / "README.md").is_file()), None)  # fmt: skip
    with atomic_files.mapped_os_errors(folder):
        paths = sorted(folder.rglob("*.md"))
    pages = {
        path.stem: path for path in paths
        if path != readme and path.stem != _ERRORS and path.parent.name != _RULES
    }  # fmt: skip
    return ({README: readme} if readme else {}) | pages


def title_of(path: Path) -> str:
    """The heading of a page."""
    with atomic_files.mapped_os_errors(path):
        text = path.read_text(encoding="utf-8")
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")


def read_page(name: str) -> tuple[str, str]:
    """A page's name and its text, in which a link to another page is the command that shows it.

    Args:
        name: as `list_pages` has it, or the path of its file.

    Raises:
        UsageError: unknown-page.
    """
    pages = list_pages()
    page_name = PurePosixPath(name.lower()).name.removesuffix(".md")
    if page_name not in pages:
        raise UsageError(
            "unknown-page",
            f"the documentation has no page `{name}`.",
            fix=nearest(page_name, pages),
        )
    with atomic_files.mapped_os_errors(pages[page_name]):
        return page_name, with_commands(
            pages[page_name].read_text(encoding="utf-8"), page_name, pages
        )


def with_commands(text: str, page: str, pages: Collection[str]) -> str:
    """A text in Markdown whose links are what to type.

    Args:
        text: the text.
        page: the name of the page on which it stands.
        pages: the names of all pages.
    """
    parts = _BLOCK.split(text)
    return "".join(
        part if number % 2 else _LINK.sub(lambda link: _link_text(link, page, pages), part)
        for number, part in enumerate(parts)
    )


def _link_text(link: re.Match[str], page: str, pages: Collection[str]) -> str:
    code, text, target = link.groups()
    if code:
        return str(code)
    path, _, anchor = target.partition("#")
    if re.match(r"https?://", target):
        return text if text == target else f"{text} ({target})"
    if not path:
        return str(text)
    linked = PurePosixPath(path)
    name = linked.stem.lower()
    rule = anchor if name == _ERRORS else name if linked.parent.name == _RULES else ""
    if rule:
        command = f"`flatout explain {rule}`"
        return command if text.strip("`") == rule else f"{text} ({command})"
    if name == _ERRORS:
        return f"{text} (`flatout explain ID`)"
    if linked.suffix != ".md" or name not in pages:
        # A file of the sources, which is not here.
        return text if linked.name in text else f"{text} ({path.lstrip('./')})"
    return str(text) if name == page else f"{text} (`flatout docs {name}`)"
