"""Idioms that are not used in what people read: strings of the program, help and documents.

Each is a word that flatout's texts once used in a private sense, with what to write in its place.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {
    r"told|tells": "reported, shown, says",
    r"nobody|somebody|whoever": "name the process, user or program",
    r"in vain": "without success, or say what happened",
    r"anew": "again",
    r"(?:is|are|was|were) to be": "must be, will be",
    r"stands? still|stood still|standstill": "hangs, hung, a stall",
    r"beside": "next to, in addition to, while ... runs",
    r"go on|goes on|gone on|went on|going on": "continue, resume",
    r"(?:does|do) not go with": "cannot be combined with",
    r"broke off|breaks? off|broken off": "was interrupted, exited, failed",
    r"cannot be as it is": "is invalid",
    r"lies|lay|lain": "is in, is at",
    r"for want of|to be had|can be had": "for lack of, is available",
    r"suffices?|sufficed": "is enough",
    r"by lot": "at random",
    r"otherwise than": "other than",
    r"mends?|mended|mending": "fix",
    r"reckon(?:s|ed|ing)?": "estimate",
    r"begun": "started",
    r"shall": "will, must",
    r"(?:is|are) not there|there already": "does not exist, already exists",
    r"looked after": "managed",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
DOCUMENTS = sorted(
    [*(ROOT / "docs").rglob("*.md"), *map(ROOT.joinpath, ("README.md", "CHANGELOG.md"))]
)
MODULES = sorted((ROOT / "src").rglob("*.py"))
SCRIPTS = [ROOT / "install.sh", ROOT / "install.ps1"]


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=str)
def test_strings_use_no_private_idiom(folder: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in MODULES
        if path.parent == folder
        for line, text in _idioms(_strings(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [*DOCUMENTS, *SCRIPTS], ids=lambda path: path.name)
def test_documents_use_no_private_idiom(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = _prose(text) if path.suffix == ".md" else enumerate(text.splitlines(), 1)
    found = [f"{line}: {text}" for line, text in _idioms(lines)]
    assert not found, "\n".join(found)


def test_idioms_are_found() -> None:
    code = 'def say():\n    """What is told."""\n    return f"nobody trains the run {name}"\n'
    assert [line for line, _ in _idioms(_strings(code))] == [3]
    document = "What is told.\n```console\ntold\n```\n`told` and `beside`\n"
    assert [line for line, _ in _idioms(_prose(document))] == [1]


def _idioms(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Line and surroundings of each idiom, with what to write in its place."""
    for line, text in lines:
        for found in PATTERN.finditer(text):
            near = " ".join(text[max(0, found.start() - 40) : found.end() + 40].split())
            better = next(
                better
                for idiom, better in BANNED.items()
                if re.fullmatch(idiom, found[0], re.IGNORECASE)
            )
            yield line, f"[{found[0]}] {near} (write: {better})"


def _strings(code: str) -> Iterator[tuple[int, str]]:
    """The strings of more than one word, docstrings apart."""
    tree = ast.parse(code)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value.strip() and id(node) not in docstrings:
            yield node.lineno, node.value


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a document that are neither code nor output."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "`", line)
