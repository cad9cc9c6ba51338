"""The hard limits on size and names. What is longer is split, or gets a line and a reason here."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "scripts", "benchmarks", "campaigns", "examples", "tests")

FILE_LINES = 600
FUNCTION_LINES = 60
PARAMETERS = 6
METHODS = 12
INHERITANCE = 1
BANNED_WORDS = {
    "util", "utils", "helper", "helpers", "common", "base", "core", "misc", "manager", "handler",
}  # fmt: skip

# "path: what" -> why it may be over its limit. A line that is no longer needed fails the test.
EXCEPTIONS: dict[str, str] = {
    "src/flatout/engine/training/api.py: train": "has the options of `flatout train`",
    "src/flatout/cluster/sweep.py: sweep": "has the options of `flatout sweep`",
}

# What a function or class may stand in.
_WITH_STATEMENTS = ast.stmt | ast.ExceptHandler | ast.match_case


def python_files() -> list[Path]:
    """Every Python file of the house, scripts without an ending among them."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in paths if path.suffix == ".py" or _is_script(path))


def _is_script(path: Path) -> bool:
    if path.suffix or "__pycache__" in path.parts:
        return False
    with open(path, "rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def definitions_in(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Every function and class of a file, wherever it stands; expressions have none."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        children = ast.iter_child_nodes(node)
        todo += [one for one in children if isinstance(one, _WITH_STATEMENTS)]


def over_limits(name: str, source: str) -> Iterator[tuple[str, str]]:
    """What in one file is over a limit, as (place, how much)."""
    num_lines = len(source.splitlines())
    if num_lines > FILE_LINES:
        yield name, f"{num_lines} lines, at most {FILE_LINES}"
    for node in definitions_in(source):
        if not isinstance(node, ast.ClassDef):
            yield from _over_function_limits(f"{name}: {node.name}", node)
        else:
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            if len(methods) > METHODS:
                yield f"{name}: {node.name}", f"{len(methods)} methods, at most {METHODS}"
    words = {word for part in Path(name).with_suffix("").parts for word in part.split("_")}
    for word in sorted(words & BANNED_WORDS):
        yield name, f"`{word}` in its name says nothing about what is in it"


def _over_function_limits(
    place: str, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[str, str]]:
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if num_lines > FUNCTION_LINES:
        yield place, f"{num_lines} lines, at most {FUNCTION_LINES}"
    arguments = node.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names += [item for item in (arguments.vararg, arguments.kwarg) if item]
    counted = [item for item in names if item.arg not in ("self", "cls")]
    if len(counted) > PARAMETERS:
        yield place, f"{len(counted)} parameters, at most {PARAMETERS}"


def inheritance_depths(sources: dict[str, str]) -> dict[str, int]:
    """For each class of the house, how many of our own classes it has above it.

    Exceptions and protocols are trees by nature and are left out.
    """
    bases = {
        f"{name}: {node.name}": [_last_name(item) for item in node.bases]
        for name, source in sources.items()
        for node in definitions_in(source)
        if isinstance(node, ast.ClassDef)
    }
    by_name = {place.rpartition(": ")[2]: above for place, above in bases.items()}

    def depth(names: list[str]) -> int:
        own = [name for name in names if name in by_name]
        return max((1 + depth(by_name[name]) for name in own), default=0)

    def is_apart(names: list[str]) -> bool:
        return any(
            name in ("Protocol", "Exception") or is_apart(by_name.get(name, [])) for name in names
        )

    return {place: depth(above) for place, above in bases.items() if not is_apart(above)}


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@functools.cache
def all_over_limits() -> dict[str, str]:
    """Everything in the house that is over a limit."""
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in python_files()
    }
    found: dict[str, str] = {}
    for name, source in sources.items():
        found |= dict(over_limits(name, source))
    for place, depth in inheritance_depths(sources).items():
        if depth > INHERITANCE:
            found[place] = f"{depth} of our own classes above it, at most {INHERITANCE}"
    return found


def test_house_is_within_limits() -> None:
    unexcused = {
        place: problem for place, problem in all_over_limits().items() if place not in EXCEPTIONS
    }
    assert not unexcused, "\n".join(f"{place}: {text}" for place, text in unexcused.items())


def test_exceptions_are_needed_and_have_reasons() -> None:
    found = all_over_limits()
    assert not [place for place in EXCEPTIONS if place not in found]
    assert all(len(reason) > 10 for reason in EXCEPTIONS.values())


NESTED = """
match x:
    case 1:
        try: pass
        except E:
            def f(a, b, c, d, e, f, g): ...
"""


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("src/long.py", "x = 1\n" * 601, "601 lines"),
        ("src/a.py", "def f() -> None:\n" + "    x = 1\n" * 60, "61 lines"),
        ("src/a.py", "def f(a, b, c, /, d, *e, f, **g): ...", "7 parameters"),
        ("src/a.py", NESTED, "7 parameters"),
        ("src/a.py", "class A:\n" + "    def f(self): ...\n" * 13, "13 methods"),
        ("src/data_helpers.py", "", "`helpers`"),
        ("src/core/a.py", "", "`core`"),
    ],
)
def test_over_limits_when_one_is_broken(name: str, source: str, problem: str) -> None:
    assert [text for _, text in over_limits(name, source) if problem in text]


def test_over_limits_when_at_the_limit() -> None:
    source = "class A:\n" + "    def f(self, a, b, c, d, e, f): ...\n" * 12
    assert not list(over_limits("src/full.py", source + "x = 1\n" * (FILE_LINES - 13)))


def test_inheritance_depths_when_two_deep() -> None:
    sources = {
        "a.py": "class A: ...\nclass B(A): ...",
        "b.py": "class C(a.B[int]): ...\nclass E(Exception): ...\nclass F(E): ...",
    }
    assert inheritance_depths(sources) == {"a.py: A": 0, "a.py: B": 1, "b.py: C": 2}
