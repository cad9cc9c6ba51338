"""The tables as they are shipped: TOML files in this folder, a few hundred rows in all."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flatout.compat.rows import Architecture, Build, Card, CudaMajor, Hint, Tables, Toolkit
from flatout.schema.versions import Pair, pair

FOLDER = Path(__file__).parent
FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax")
_PAIRS = {"capability", "lowest", "newest"}


@functools.cache
def shipped_tables() -> Tables:
    """All tables of this release."""
    cuda = _document("cuda")
    gpus = _document("gpus")
    documents = [_document(name) for name in FRAMEWORKS]
    return Tables(
        builds=tuple(build for document in documents for build in _builds(document)),
        architectures=tuple(_rows(cuda, "architecture", Architecture)),
        cards=tuple(card for row in gpus["cards"] for card in _cards(row)),
        majors=tuple(_rows(cuda, "major", CudaMajor)),
        toolkits=tuple(_rows(cuda, "toolkit", Toolkit)),
        hints=tuple(hint for document in documents for hint in _rows(document, "hint", Hint)),
        read=min(document["read"] for document in (cuda, gpus, *documents)),
    )


def with_updates(tables: Tables, added: tuple[Build, ...], read: str) -> Tables:
    """The tables with newer builds that were found in an index.

    Args:
        tables: those of this release.
        added: newer builds; those already in the tables are skipped.
        read: when they were found.
    """
    known = {(build.framework, build.version, build.cuda, build.machine) for build in tables.builds}
    new = [build for build in added
           if (build.framework, build.version, build.cuda, build.machine) not in known]  # fmt: skip
    return replace(tables, builds=(*tables.builds, *new), read=max(tables.read, read))


def _document(name: str) -> dict[str, Any]:
    with open(FOLDER / f"{name}.toml", "rb") as file:
        return tomllib.load(file)


def _rows(document: dict[str, Any], table: str, kind: type[Any]) -> Iterator[Any]:
    """The rows of a table; missing fields are taken from the head of the file."""
    names = {field.name for field in fields(kind)}
    head = {name: value for name, value in document.items() if name in names}
    for row in document.get(table, ()):
        yield kind(**{name: _value(name, value) for name, value in {**head, **row}.items()})


def _builds(document: dict[str, Any]) -> Iterator[Build]:
    for row in document["build"]:
        rest = {name: value for name, value in row.items() if name != "versions"}
        index = rest.pop("index", document["index"]).format(cuda=rest["cuda"])
        row_of_first = {**rest, "index": index, "version": row["versions"][0]}
        first = next(_rows({**document, "build": [row_of_first]}, "build", Build))
        yield from (replace(first, version=version) for version in row["versions"])


def _cards(row: dict[str, Any]) -> Iterator[Card]:
    rest = {name: value for name, value in row.items() if name != "names"}
    rest["capability"] = pair(rest["capability"])
    yield from (Card(name=name, **rest) for name in row["names"])


def _value(name: str, value: Any) -> Any:
    if name in _PAIRS:
        return pair(value)
    if name == "python":
        return pair(value[0]), pair(value[1])
    if name == "ptx":
        return _capability(value)
    if name == "codes":
        return tuple(map(_capability, value))
    return tuple(value) if isinstance(value, list) else value


def _capability(code: int) -> Pair:
    return divmod(code, 10)
