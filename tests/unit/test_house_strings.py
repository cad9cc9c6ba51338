"""What a rewording breaks unnoticed: a lost f-prefix, and names that are no longer defined.

Strings: a plain string with `{name}` in it prints the braces. Docstrings: what they refer to, and
the errors they list, must exist.
"""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "flatout"
CODE = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
MODULES = {path: ast.parse(code) for path, code in CODE.items()}
# `{name}`, `{name.attribute}`, `{call(...)}`, `{name or 'none'}`; not `${name}` of a shell.
PLACEHOLDER = re.compile(r"(?<![${])(?<!\\N)\{[A-Za-z_][\w.]*[^{}\n]*\}")
# Whose strings are templates: filled in by `format` or `replace`, or programs of other languages.
TEMPLATES = {
    "cluster/compose/compose_file.py": "templates of compose.yaml, filled in by format",
    "cluster/compose/image.py": "the template of the Dockerfile, filled in by format",
    "monitor/advice_words.py": "words of advice, filled in by format",
    "monitor/grafana_dashboard.py": "selectors of PromQL, with Grafana's variables",
    "runs/scaffold/sources.py": "pieces of a program that `flatout new` writes",
    "serve/application.py": "paths of routes, with their parameters",
    "serve/docs_page.py": "the script of the page",
    "serve/openapi_document.py": "paths of routes, with their parameters",
    "setup/env/export.py": "Jupyter's own placeholder in kernel.json",
    "setup/host/windows_script.py": "the template of a request, filled in by format",
    "tune/emit/code_data.py": "pieces of a program that `flatout tune` writes",
    "tune/emit/code_graphs.py": "pieces of a program that `flatout tune` writes",
    "tune/emit/code_loop.py": "pieces of a program that `flatout tune` writes",
    "web/application.py": "paths of routes, with their parameters",
}
_REFERENCE = re.compile(r"(?:\bSee|[(;:,] ?(?:and )?see)\s`*([A-Z][a-z]\w*)")
_RAISES = re.compile(r"^( *)Raises:\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)
_ERROR = re.compile(r"(?:^|(?<=; ))\s*((?:[A-Z]\w+(?:, )?)+):", re.MULTILINE)


def test_no_string_has_lost_its_f() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path, code in CODE.items()
        if path.relative_to(SOURCE).as_posix() not in TEMPLATES
        for line, text in placeholders(code)
    ]
    assert not found, "\n".join(found)


def test_files_of_templates_have_some() -> None:
    lacking = [name for name in TEMPLATES if not list(placeholders(CODE[SOURCE / name]))]
    assert not lacking, "no exception is needed for them"


def test_docstrings_refer_to_what_exists() -> None:
    known = {name for tree in MODULES.values() for name in names_in(tree)} | set(dir(builtins))
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path, tree in MODULES.items()
        for name in referred(tree)
        if name not in known
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('fix = "yours are in {folder()}"', ["{folder()}"]),
        ('fix = f"a {b} " "and {c.d}"', ["{c.d}"]),
        ('fix = "{len(gpus) or 0} and {}"', ["{len(gpus) or 0}"]),
        ('fix = f"{a} of {b}" "{{}}"', []),
        ('"""A docstring: {name}."""', []),
        ('fix = "${NAME} is of the shell"', []),
    ],
)
def test_placeholders_are_found(code: str, found: list[str]) -> None:
    assert [text for _, text in placeholders(code)] == found


def test_references_are_found() -> None:
    code = (
        'def run():\n    """See Reporter.\n\n    Raises:\n        GoBack: it cannot.\n'
        '        PeerShort, UsageError: see `Group`; so do the others: all.\n    """\n'
    )
    found = {"Reporter", "Group", "GoBack", "PeerShort", "UsageError"}
    assert set(referred(ast.parse(code))) == found


def placeholders(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of what looks like a placeholder in plain strings, docstrings apart.

    Read from the tokens: the tree joins a plain string to the f-strings next to it.
    """
    docstrings = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        prefix = re.split("[\"']", token.string, maxsplit=1)[0].lower()
        if token.type == tokenize.STRING and "f" not in prefix and token.start not in docstrings:
            yield from ((token.start[0], found[0]) for found in PLACEHOLDER.finditer(token.string))


def names_in(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines, imports or uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name).rpartition(".")[2] for one in node.names)
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def referred(tree: ast.Module) -> Iterator[str]:
    """The names that the docstrings of a module refer to, and the errors that they list."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        yield from _REFERENCE.findall(text)
        for section in _RAISES.finditer(text + "\n"):
            for names in _ERROR.findall(section[2]):
                yield from names.split(", ")
