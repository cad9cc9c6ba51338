"""From a rule's file to a rule: decoded, checked, and with what a scan looks for first."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flatout.doctor.condition import FACTS, Name, names_in, parse_condition
from flatout.doctor.prefilter import has_nested_repetition, required_words, texts_of
from flatout.doctor.rule import Rule, captured_values
from flatout.doctor.rule_data import RuleData, SignatureData, Text
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import Signature

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_RESERVED = {"and", "or", "not", *FACTS}
_AT = re.compile(r" - at `\$\.?([^`]*)`")


@dataclass(frozen=True, kw_only=True)
class RuleProblem(Exception):
    """What is wrong with a rule's file: where it is, and why."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


def rule_from(text: str, *, file: str, family: str, is_own: bool = False) -> Rule:
    """The rule in a file.

    Args:
        text: the file's content, TOML.
        file: its path, for messages.
        family: its family.
        is_own: it is a user's, and may not name Python functions.

    Raises:
        RuleProblem: it is no valid rule.
    """
    try:
        data = msgspec.convert(tomllib.loads(text), RuleData)
        rule = Rule(
            data=data,
            family=family,
            signatures=tuple(signature_from(one, is_checked=is_own) for one in data.signature),
            triggers=_triggers(data),
        )
        _check(rule, is_own=is_own)
    except RecursionError as error:
        raise RuleProblem(file=file, why="it is nested too deeply") from error
    # Python's parser of patterns reports a repetition of 10**12 as an OverflowError.
    except (ValueError, OverflowError, re.error) as error:
        raise RuleProblem(file=file, why=_AT.sub(r": `\1`", str(error))) from error
    if Path(file).name != f"{data.id}.toml":
        raise RuleProblem(file=file, why=f"the file must be called {data.id}.toml, as its `id`")
    return rule


def signatures_from(text: str) -> tuple[Signature, ...]:
    """The signatures in a file that has nothing else.

    Raises:
        ValueError: it is not valid.
    """
    rows = msgspec.convert(tomllib.loads(text)["signature"], tuple[SignatureData, ...])
    return tuple(signature_from(row) for row in rows)


def signature_from(data: SignatureData, *, is_checked: bool = False) -> Signature:
    """The signature, with the texts that a scan looks for first.

    Args:
        data: of a rule's file.
        is_checked: its pattern is tried; those of flatout's own rules are tested.

    Raises:
        ValueError: its pattern is wrong, or nothing can be looked for.
    """
    if not _ID.fullmatch(data.id):
        raise ValueError(f"signature `{data.id}`: the id must be words joined by hyphens")
    if data.id in _RESERVED:
        raise ValueError(f"signature `{data.id}`: the id has another meaning in conditions")
    if data.lines < 1:
        raise ValueError(f"signature `{data.id}`: `lines` must be at least 1")
    if data.xid:
        return xid(data.id, *data.xid)
    pattern = data.pattern if isinstance(data.pattern, str) else "|".join(data.pattern)
    if pattern and is_checked:
        try:
            re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"signature `{data.id}`: the pattern is invalid: {error}") from error
        if has_nested_repetition(pattern):
            raise ValueError(
                f"signature `{data.id}`: a repetition inside a repetition can take forever; "
                "repeat only one of them, or the outer one at most 8 times"
            )
    texts = data.texts or (texts_of(pattern, lines=data.lines) if pattern else ())
    if not texts:
        raise ValueError(
            f"signature `{data.id}`: add `texts`, of which one is in every match: none can be "
            "derived from the pattern"
            if pattern
            else f"signature `{data.id}`: it needs `texts`, a `pattern` or `xid`"
        )
    for text in texts:
        if not required_words(text):
            raise ValueError(f"signature `{data.id}`: the text `{text}` has no letters")
    return Signature(id=data.id, texts=texts, pattern=pattern or None, lines=data.lines)


def _triggers(data: RuleData) -> tuple[str, ...]:
    """The signs in the conditions that are not negated, in order."""
    if data.verdict is not None:
        return ()
    return tuple(
        dict.fromkeys(
            name.sign
            for condition in (data.decided, data.likely, data.possible)
            if condition is not None
            for name in names_in(parse_condition(condition))
            if not name.is_negated and name.sign not in FACTS
        )
    )


def _check(rule: Rule, *, is_own: bool) -> None:
    data = rule.data
    if not _ID.fullmatch(data.id):
        raise ValueError(f"`id` is `{data.id}`; it must be words joined by hyphens")
    if not data.problem:
        raise ValueError("`problem` is empty")
    if not 0 <= data.prior <= 100:
        raise ValueError(f"`prior` is {data.prior}; it must be between 0 and 100")
    if data.id in data.explains:
        raise ValueError("`explains` names the rule itself, whose finding would be omitted")
    if data.verdict is None and not rule.triggers:
        raise ValueError("one of `decided`, `likely` and `possible` must name a signature")
    ids = [signature.id for signature in data.signature]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"two signatures are called `{id}`; give one another id")
    for fix in data.fix:
        if not fix.text and fix.computed is None:
            raise ValueError("a fix needs a `text`")
    for text in _texts(data):
        if not isinstance(text, str) and text[-1].when is not None:
            raise ValueError(f"the last variant of `{text[-1].text}` must have no `when`")
    list(_names(data))
    if is_own and any(_functions(data)):
        raise ValueError(
            "`verdict`, `[[fact]]`, `computed` and `edits_for` name Python functions, which only "
            "flatout's own rules may"
        )


def _functions(data: RuleData) -> Iterator[str]:
    yield from filter(None, [data.verdict])
    yield from (fact.read for fact in data.fact)
    for fix in data.fix:
        yield from filter(None, [fix.computed, fix.edits_for])


def _texts(data: RuleData) -> Iterator[Text]:
    yield data.problem
    yield from filter(None, [data.because])
    for fix in data.fix:
        yield from filter(None, [fix.text, fix.changes])


def _names(data: RuleData) -> Iterator[Name]:
    """Every name in any condition, all of which are parsed."""
    conditions: list[str | None] = [
        data.decided, data.likely, data.possible, data.never,
        data.error_if, data.warning_if, data.note_if, *(fix.when for fix in data.fix),
    ]  # fmt: skip
    for text in _texts(data):
        conditions += [variant.when for variant in (() if isinstance(text, str) else text)]
    for condition in conditions:
        if condition is not None:
            yield from names_in(parse_condition(condition))


def unknown_signs(rule: Rule, known: set[str]) -> list[str]:
    """Signs that the rule names and nothing declares."""
    named: set[Any] = {name.sign for name in _names(rule.data)} - FACTS.keys()
    named |= {*rule.data.evidence}
    own = {signature.id for signature in rule.signatures} | {fact.sign for fact in rule.data.fact}
    return sorted(named - own - known)


def used_values(rule: Rule) -> set[tuple[str, str]]:
    """Sign and group of each captured value that the rule asks for or shows."""
    data = rule.data
    shown = [*data.confirm, *(command for fix in data.fix for command in fix.commands)]
    for text in _texts(data):
        shown += [text] if isinstance(text, str) else [variant.text for variant in text]
    asked = {(name.sign, name.value) for name in _names(data) if name.value is not None}
    return asked.union(*map(captured_values, shown))
