"""A rule, and the case that it examines."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from flatout.doctor.condition import parse_condition
from flatout.doctor.fact_check import FactCheck
from flatout.doctor.rule_data import FixData, RuleData, ShellBySystem, Text
from flatout.doctor.signature import Sign, Signature
from flatout.schema.finding import Certainty, Evidence, Finding, Fix, Severity
from flatout.schema.machine import Machine

_CERTAINTIES: tuple[Certainty, ...] = ("decided", "likely", "possible")
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
# In a rule's texts and commands: {sign.value}, or with a default, {sign.value|text}.
_CAPTURED = re.compile(r"\{([a-z0-9][a-z0-9-]*)\.([a-z_]\w*)(?:\|([^{}]*))?\}")
# What looks like it and is not: without a sign, or with another spelling.
_BRACES = re.compile(r"(?<![${])\{([A-Za-z_][\w-]*(?:\.[\w-]+)?(?:\|[^{}]*)?)\}(?!\})")


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


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule's Python function decides; None leaves a field to the rule's data.

    fixes: shown instead of the rule's.
    """

    certainty: Certainty
    severity: Severity | None = None
    problem: str | None = None
    because: str | None = None
    evidence: tuple[Evidence, ...] | None = None
    fixes: tuple[Fix, ...] | None = None
    confirm: tuple[str, ...] | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, recognized by its signs.

    Attributes:
        data: the content of its file.
        family: the folder of that file.
        signatures: texts to look for, with what a scan looks for first.
        triggers: signs without which there is no finding; empty if a Python function decides.
    """

    data: RuleData
    family: str
    signatures: tuple[Signature, ...] = ()
    triggers: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The rule's id in kebab case."""
        return self.data.id

    @property
    def prior(self) -> int:
        """How common this cause is among those with the same evidence, 0 to 100."""
        return self.data.prior

    @property
    def explains(self) -> tuple[str, ...]:
        """Rules whose findings are consequences of this one, and hidden if it is found."""
        return self.data.explains

    @property
    def fact_checks(self) -> tuple[FactCheck, ...]:
        """Checks of a machine; they produce the same signs as texts do."""
        return tuple(
            FactCheck(
                sign=fact.sign,
                read=functools.partial(_call, fact.read),
                severity=fact.severity,
                certainty=cast("Certainty", fact.certainty),
                is_for_texts=fact.in_texts,
            )
            for fact in self.data.fact
        )

    def check(self, case: Case) -> Finding | None:
        """The case's finding, or None."""
        if self.triggers and not case.sees(*self.triggers):
            return None
        data = self.data
        verdict = self._verdict(case)
        if verdict is None:
            return None
        shown = verdict.evidence
        if shown is None:
            shown = case.evidence(*(data.evidence or self.triggers))
        severity = verdict.severity or self._severity(case)
        because = verdict.because or (_text(data.because, case) if data.because else None)
        confirm = verdict.confirm
        if confirm is None:
            confirm = tuple(_filled(line, case) for line in data.confirm)
        fixes = verdict.fixes
        if fixes is None:
            fixes = tuple(_fix(fix, case) for fix in data.fix if _holds(fix.when, case))
        return Finding(
            rule=data.id,
            severity=severity,
            certainty=verdict.certainty,
            problem=verdict.problem or _text(data.problem, case),
            because=because,
            evidence=shown,
            fixes=fixes,
            confirm=confirm,
        )

    def _verdict(self, case: Case) -> RuleVerdict | None:
        data = self.data
        if data.never is not None and _holds(data.never, case):
            return None
        if data.verdict is not None:
            return cast("RuleVerdict | None", _call(data.verdict, case))
        conditions = (data.decided, data.likely, data.possible)
        for certainty, condition in zip(_CERTAINTIES, conditions, strict=True):
            if condition is not None and _holds(condition, case):
                return RuleVerdict(certainty=certainty)
        return None

    def _severity(self, case: Case) -> Severity:
        data = self.data
        conditions = (data.error_if, data.warning_if, data.note_if)
        for severity, condition in zip(_SEVERITIES, conditions, strict=True):
            if condition is not None and _holds(condition, case):
                return severity
        return data.severity


def _fix(data: FixData, case: Case) -> Fix:
    if data.computed is not None:
        return cast("Fix", _call(data.computed, case))
    where = data.where
    if isinstance(where, ShellBySystem):
        where = where.wsl if case.is_wsl else where.elsewhere
    return Fix(
        text=_text(data.text, case),
        safety=data.safety,
        commands=tuple(_filled(command, case) for command in data.commands),
        edits=_call(data.edits_for, case.machine) if data.edits_for else data.edits,
        where=where,
        changes=_text(data.changes, case) if data.changes else None,
        undo=data.undo,
    )


def _text(text: Text, case: Case) -> str:
    """A text, or the first variant whose condition is true."""
    if not isinstance(text, str):
        text = next(variant.text for variant in text if _holds(variant.when, case))
    return _filled(text, case)


def _filled(text: str, case: Case) -> str:
    """The text with captured values in it."""

    def value(match: re.Match[str]) -> str:
        return case.value(match[1], match[2]) or match[3] or f"<{match[2]}>"

    return _CAPTURED.sub(value, text) if "{" in text else text


def captured_values(text: str) -> set[tuple[str, str]]:
    """Sign and group of each captured value in a text."""
    return {(match[1], match[2]) for match in _CAPTURED.finditer(text)}


def open_braces(text: str) -> list[str]:
    """What stands in braces as a captured value would, and is none."""
    return [match[1] for match in _BRACES.finditer(text) if not _CAPTURED.fullmatch(match[0])]


def _holds(condition: str | None, case: Case) -> bool:
    return condition is None or _parsed(condition).holds(case)


# Conditions are parsed when their rule is reached, which few are.
_parsed = functools.lru_cache(maxsize=None)(parse_condition)


def _call(name: str, argument: Any) -> Any:
    """The result of a function in `doctor/computed`, by "module.function"."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"flatout.doctor.computed.{module}"), function)(argument)
