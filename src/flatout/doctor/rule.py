"""A rule, and the case that it examines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import msgspec

from flatout.doctor.fact_check import FactCheck
from flatout.doctor.signature import Sign, Signature
from flatout.schema.finding import Certainty, Evidence, Finding
from flatout.schema.machine import Machine


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known: facts, and signs seen in a text.

    signs: every known signature's id -> where it was found, empty if it was not; includes the
    facts that produce the sign. An undeclared id is a KeyError, so that tests catch it.
    is_here: the facts are those of this machine, read just now.
    is_text: the signs are from a user's text, not from what programs just printed.
    """

    machine: Machine
    signs: Mapping[str, tuple[Sign, ...]]
    is_here: bool = False
    is_text: bool = False

    def sees(self, *ids: str) -> bool:
        """Whether any of these signs was seen."""
        return any(self.signs[id] for id in ids)

    def certainty(self, *decisive: str) -> Certainty:
        """Decided if one of these signs was seen, which have only one cause; else likely."""
        return "decided" if self.sees(*decisive) else "likely"

    def value(self, id: str, name: str) -> str | None:
        """The first value with that name among the sign's matches, or None."""
        return next((sign.values[name] for sign in self.signs[id] if name in sign.values), None)

    def evidence(self, *ids: str) -> tuple[Evidence, ...]:
        """The first line of each of these signs in the text, without repeats, then the facts."""
        lines = {
            sign.line: Evidence(
                text=sign.text, where=f"line {sign.line}" if self.is_text else "here"
            )
            for id in ids
            for sign in [match for match in self.signs[id] if match.where is None][:1]
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
        """Under WSL 1 or 2, by the facts or the text."""
        return self.machine.host.wsl is not None

    @property
    def is_container(self) -> bool:
        """In a container, or while starting one."""
        return self.machine.host.container is not None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, recognized by its signs.

    Attributes:
        check: the case's finding, or None. A pure function; its module's name is the rule's id,
            and the module's docstring its page.
        signatures: texts to look for that are declared by this rule.
        fact_checks: of a machine; they produce the same signs as texts do.
        explains: rules whose findings are consequences of this one, and hidden if it is found.
        prior: how common this cause is among those with the same evidence, 0 to 100. Of two
            equally certain findings, the more common comes first.
    """

    check: Callable[[Case], Finding | None]
    signatures: tuple[Signature, ...] = ()
    fact_checks: tuple[FactCheck, ...] = ()
    explains: tuple[str, ...] = ()
    prior: int = 50

    @property
    def id(self) -> str:
        """The rule's id in kebab case."""
        return self.check.__module__.rpartition(".")[2].replace("_", "-")

    @property
    def page(self) -> str:
        """Problem, checks, reason, example, fix and source, in Markdown."""
        return sys.modules[self.check.__module__].__doc__ or ""
