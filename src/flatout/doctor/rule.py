"""A rule, and the case that it looks at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import msgspec

from flatout.doctor.reading import Reading
from flatout.doctor.signature import Sign, Signature
from flatout.nouns.finding import Certainty, Evidence, Finding
from flatout.nouns.machine import Machine


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known: facts, and signs seen in a text.

    signs: every known signature's id -> its places, none where it was not seen; facts that
    stand for it are among them. Asking for one that nobody declares is a KeyError, which every
    test meets.
    is_here: the facts are those of this machine, read just now.
    is_text: a text was looked at that somebody has; without it, what programs just said.
    """

    machine: Machine
    signs: Mapping[str, tuple[Sign, ...]]
    is_here: bool = False
    is_text: bool = False

    def sees(self, *ids: str) -> bool:
        """Whether any of these signs was seen."""
        return any(self.signs[id] for id in ids)

    def certainty(self, *telling: str) -> Certainty:
        """Decided where one of these signs was seen, which have no second cause; else likely."""
        return "decided" if self.sees(*telling) else "likely"

    def value(self, id: str, name: str) -> str | None:
        """What the first place of a sign caught under that name, or None."""
        return next((sign.values[name] for sign in self.signs[id] if name in sign.values), None)

    def evidence(self, *ids: str) -> tuple[Evidence, ...]:
        """The first place of each of these signs in the text, each line once, then the facts."""
        lines = {
            sign.line: Evidence(
                text=sign.text, where=f"line {sign.line}" if self.is_text else "here"
            )
            for id in ids
            for sign in [one for one in self.signs[id] if one.where is None][:1]
        }
        facts = dict.fromkeys(
            Evidence(text=sign.text, where=sign.where)
            for id in ids
            for sign in self.signs[id]
            if sign.where is not None
        )
        return (*(lines[line] for line in sorted(lines)), *facts)

    @property
    def is_wsl(self) -> bool:
        """Under WSL 1 or 2, or told so."""
        return self.machine.host.wsl is not None

    @property
    def is_container(self) -> bool:
        """In a container, or one is started."""
        return self.machine.host.container is not None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, known by what it leaves behind.

    Attributes:
        check: the case's finding, or None. A pure function; its module's name is the rule's id,
            and the module's docstring its page.
        signatures: what only this rule, or this rule first, looks for in text.
        readings: what it looks for in the facts of a machine.
        explains: rules whose findings are this one's consequences, and hidden where it is found.
        prior: how common this cause is among those that leave the same evidence behind, 0 to 100.
            Of two findings equally certain the more common comes first.
    """

    check: Callable[[Case], Finding | None]
    signatures: tuple[Signature, ...] = ()
    readings: tuple[Reading, ...] = ()
    explains: tuple[str, ...] = ()
    prior: int = 50

    @property
    def id(self) -> str:
        """The label in kebab case."""
        return self.check.__module__.rpartition(".")[2].replace("_", "-")

    @property
    def page(self) -> str:
        """What it checks, why that matters, an example, the fix and its source, in Markdown."""
        return sys.modules[self.check.__module__].__doc__ or ""
