"""Reads the cases of tests/cases/setup: a machine, a request, and the right answer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatout.compat.build_requests import build_requests_from
from flatout.compat.request import SetupRequest
from flatout.compat.solve import CompatAnswer, solve
from flatout.compat.tables import shipped_tables
from flatout.compat.target import described_target
from flatout.schema.versions import meets

FOLDER = Path(__file__).resolve().parents[1] / "cases" / "setup"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line. cudas: the right builds, none if nothing fits; source: of the answer."""

    line: str
    request: SetupRequest
    cudas: tuple[str, ...]
    versions: str
    source: str
    group: str

    def is_right(self, cuda: str | None, version: str | None) -> bool:
        """Whether an answer (None: nothing fits) is the right one."""
        if cuda is None or version is None or not self.cudas:
            return cuda is None and not self.cudas
        return cuda in self.cudas and (version == "nightly" or meets(version, self.versions))

    def answer(self) -> CompatAnswer:
        """The solver's answer, by the shipped tables."""
        tables = shipped_tables()
        wish = build_requests_from(self.request)[0]
        return solve(described_target(self.request, tables), wish, tables)


def cases() -> Iterator[Case]:
    """All cases of all files."""
    for file in sorted(FOLDER.glob("*.toml")):
        for group in tomllib.loads(file.read_text(encoding="utf-8"))["group"]:
            yield from (_case(line, group["source"]) for line in group["cases"])


def _case(line: str, source: str) -> Case:
    shown, _, thread = line.partition(" # ")
    cards, driver, os, asked, answer = (part.strip() for part in shown.split("|"))
    framework, *settings = asked.split()
    python = [one[2:] for one in settings if one.startswith("py")]
    cuda = [one for one in settings if re.fullmatch(r"cu\d+", one)]
    cudas, _, versions = answer.partition(" ")
    return Case(
        line=line,
        request=SetupRequest(
            frameworks=(framework,),
            cards=tuple(cards.split(" + ")),
            driver=None if driver == "-" else driver,
            os=os,  # type: ignore[arg-type]
            python=python[0] if python else None,
            cuda=cuda[0] if cuda else None,
            is_nightly="nightly" in settings,
        ),
        cudas=() if cudas == "none" else tuple(cudas.split(",")),
        versions=versions,
        source=thread or source,
        group=source,
    )
