"""From a rule's file to a rule: decoded, checked, and with what a scan looks for first."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from flatout.doctor.condition import (
    FACTS,
    Condition,
    Name,
    can_be_first,
    names_in,
    parse_condition,
)
from flatout.doctor.prefilter import has_nested_repetition, required_words, texts_of
from flatout.doctor.rule import Rule, captured_values, open_braces
from flatout.doctor.rule_data import RuleData, SignatureData, Text
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import Signature
from flatout.doctor.toml_text import Misfit, TomlPath, misfit, syntax_problem

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_RESERVED = {"and", "or", "not", *FACTS}


@dataclass(frozen=True, kw_only=True)
class RuleProblem(Exception):
    """What is wrong with a rule's file: where it is, and why."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class Placed(NamedTuple):
    """A text or condition of a rule, and where it is in the file."""

    text: str
    path: TomlPath


def rule_from(text: str, *, file: str, family: str, is_own: bool = False) -> Rule:
    """The rule in a file.

    Args:
        text: the file's content, TOML.
        file: its path, for messages.
        family: its family.
        is_own: it is a user's, and may not name Python functions; what tests check in flatout's
            own rules is checked here.

    Raises:
        RuleProblem: it is no valid rule.
    """
    try:
        rule = _rule(tomllib.loads(text), family, is_own=is_own)
        if Path(file).name != f"{rule.id}.toml":
            raise Misfit(f"the file must be called {rule.id}.toml, as its `id`", "id")
    except RecursionError as error:
        raise RuleProblem(file=file, why="it is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise RuleProblem(file=file, why=syntax_problem(str(error), text)) from error
    except Misfit as error:
        raise RuleProblem(file=file, why=error.in_text(text)) from error
    except (ValueError, OverflowError, re.error) as error:
        raise RuleProblem(file=file, why=str(error)) from error
    return rule


def _rule(tables: object, family: str, *, is_own: bool) -> Rule:
    try:
        data = msgspec.convert(tables, RuleData)
    except msgspec.ValidationError as error:
        raise misfit(str(error)) from error
    signatures = []
    for at, one in enumerate(data.signature):
        try:
            signatures.append(signature_from(one, is_checked=is_own))
        except Misfit as error:
            raise error.below("signature", at) from error
    rule = Rule(data=data, family=family, signatures=tuple(signatures), triggers=_triggers(data))
    _check(rule)
    if is_own:
        if any(_functions(data)):
            raise Misfit(
                "`verdict`, `[[fact]]`, `computed` and `edits_for` name Python functions, which "
                "only flatout's own rules may"
            )
        check_strictly(rule)
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
        raise Misfit(f"signature `{data.id}`: the id must be words joined by hyphens", "id")
    if data.id in _RESERVED:
        raise Misfit(f"signature `{data.id}`: the id has another meaning in conditions", "id")
    if data.lines < 1:
        raise Misfit(f"signature `{data.id}`: `lines` must be at least 1", "lines")
    if data.xid:
        return xid(data.id, *data.xid)
    pattern = data.pattern if isinstance(data.pattern, str) else "|".join(data.pattern)
    if pattern and is_checked:
        _check_pattern(data, pattern)
    texts = data.texts or (texts_of(pattern, lines=data.lines) if pattern else ())
    if not texts:
        why = (
            "add `texts`, of which one is in every match: none can be derived from the pattern"
            if pattern
            else "it needs `texts`, a `pattern` or `xid`"
        )
        raise Misfit(f"signature `{data.id}`: {why}", *(["pattern"] if pattern else []))
    for at, text in enumerate(texts):
        if not required_words(text):
            raise Misfit(f"signature `{data.id}`: the text `{text}` has no letters", "texts", at)
    return Signature(id=data.id, texts=texts, pattern=pattern or None, lines=data.lines)


def _check_pattern(data: SignatureData, pattern: str) -> None:
    for at, one in enumerate([pattern] if isinstance(data.pattern, str) else data.pattern):
        try:
            re.compile(one, re.IGNORECASE)
        # A repetition of 10**12 is an OverflowError.
        except (re.error, OverflowError) as error:
            # Alternatives are joined, and may refer to groups of each other.
            if one == pattern or not _is_valid(pattern):
                raise Misfit(
                    f"signature `{data.id}`: the pattern is invalid: {error}", "pattern", at
                ) from error
    if not _is_valid(pattern):
        raise Misfit(
            f"signature `{data.id}`: the alternatives of the pattern cannot be joined with `|`",
            "pattern",
        )
    if has_nested_repetition(pattern):
        raise Misfit(
            f"signature `{data.id}`: a repetition inside a repetition can take forever; "
            "repeat only one of them, or the outer one at most 8 times",
            "pattern",
        )


def _is_valid(pattern: str) -> bool:
    try:
        re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError):
        return False
    return True


def _triggers(data: RuleData) -> tuple[str, ...]:
    """The signs in the conditions that are not negated, in order."""
    if data.verdict is not None:
        return ()
    return tuple(
        dict.fromkeys(
            name.sign
            for placed in _certainties(data)
            for name in names_in(_parsed(placed))
            if not name.is_negated and name.sign not in FACTS
        )
    )


def _check(rule: Rule) -> None:
    data = rule.data
    if not _ID.fullmatch(data.id):
        raise Misfit(f"`id` is `{data.id}`; it must be words joined by hyphens", "id")
    if not data.problem:
        raise Misfit("`problem` is empty", "problem")
    if not 0 <= data.prior <= 100:
        raise Misfit(f"`prior` is {data.prior}; it must be between 0 and 100", "prior")
    if data.id in data.explains:
        raise Misfit("`explains` names the rule itself, whose finding would be omitted", "explains")
    if data.verdict is None and not rule.triggers:
        place = next((placed.path for placed in _certainties(data)), ())
        raise Misfit("one of `decided`, `likely` and `possible` must name a signature", *place)
    ids: list[str] = []
    for at, signature in enumerate(data.signature):
        if signature.id in ids:
            why = f"two signatures are called `{signature.id}`; give one another id"
            raise Misfit(why, "signature", at, "id")
        ids.append(signature.id)
    for at, fix in enumerate(data.fix):
        if not fix.text and fix.computed is None:
            raise Misfit("a fix needs a `text`", "fix", at)
    for text, path in _texts(data):
        if not isinstance(text, str) and text[-1].when is not None:
            why = f"the last variant of `{text[-1].text}` must have no `when`"
            raise Misfit(why, *path, len(text) - 1)
    list(_names(data))


def check_strictly(rule: Rule) -> None:
    """Looks for conditions that are never reached, and braces without a sign.

    Raises:
        Misfit: there is one.
    """
    data = rule.data
    never = [Placed(data.never, ("never",))] if data.never is not None else []
    severities = (("error_if", data.error_if), ("warning_if", data.warning_if),
                  ("note_if", data.note_if))  # fmt: skip
    _check_reached([*never, *_certainties(data)])
    _check_reached([Placed(text, (name,)) for name, text in severities if text is not None])
    groups = {
        name: signature.id
        for signature in rule.signatures
        if signature.pattern
        for name in re.compile(signature.pattern).groupindex
    }
    for text, path in _texts(data):
        if isinstance(text, str):
            _check_braces(Placed(text, path), groups, is_command=False)
            continue
        for at, variant in enumerate(text):
            if variant.when is None and at < len(text) - 1:
                why = f"the variants after `{variant.text}` are never used: it has no `when`"
                raise Misfit(why, *path, at)
            _check_braces(Placed(variant.text, (*path, at)), groups, is_command=False)
    for command in _commands(data):
        _check_braces(command, groups, is_command=True)


def _check_reached(conditions: list[Placed]) -> None:
    """Each of these is looked at only if those before it are false."""
    earlier: list[Condition] = []
    for at, placed in enumerate(conditions):
        condition = _parsed(placed)
        name = placed.path[-1]
        if not can_be_first(condition, []):
            raise Misfit(f"`{name}` can never be true: it contradicts itself", *placed.path)
        if not can_be_first(condition, earlier):
            before = " or ".join(f"`{other.path[-1]}`" for other in conditions[:at])
            raise Misfit(
                f"`{name}` is never reached: whenever it is true, {before} is, too", *placed.path
            )
        earlier.append(condition)


def _check_braces(placed: Placed, groups: dict[str, str], *, is_command: bool) -> None:
    """Refuses `{size}` for `{killed.size}`; a command may have braces of its own, as awk's."""
    for words in open_braces(placed.text):
        name = words.partition("|")[0].rpartition(".")[-1]
        if name in groups:
            why = f"write `{{{groups[name]}.{name}}}` for what the signature has captured"
        elif is_command:
            continue
        else:
            why = f"no signature of this rule captures a group `{name}` for `{{SIGNATURE.{name}}}`"
        raise Misfit(f"`{{{words}}}` would be shown as it is; {why}", *placed.path)


def _functions(data: RuleData) -> Iterator[str]:
    yield from filter(None, [data.verdict])
    yield from (fact.read for fact in data.fact)
    for fix in data.fix:
        yield from filter(None, [fix.computed, fix.edits_for])


def _texts(data: RuleData) -> Iterator[tuple[Text, TomlPath]]:
    yield data.problem, ("problem",)
    if data.because:
        yield data.because, ("because",)
    for at, fix in enumerate(data.fix):
        if fix.text:
            yield fix.text, ("fix", at, "text")
        if fix.changes:
            yield fix.changes, ("fix", at, "changes")


def _commands(data: RuleData) -> Iterator[Placed]:
    yield from (Placed(text, ("confirm", at)) for at, text in enumerate(data.confirm))
    for at, fix in enumerate(data.fix):
        for number, command in enumerate(fix.commands):
            yield Placed(command, ("fix", at, "commands", number))


def _shown(data: RuleData) -> Iterator[Placed]:
    """Everything in which captured values are filled in."""
    for text, path in _texts(data):
        if isinstance(text, str):
            yield Placed(text, path)
        else:
            yield from (Placed(variant.text, (*path, at)) for at, variant in enumerate(text))
    yield from _commands(data)


def _certainties(data: RuleData) -> list[Placed]:
    named = (("decided", data.decided), ("likely", data.likely), ("possible", data.possible))
    return [Placed(text, (name,)) for name, text in named if text is not None]


def _conditions(data: RuleData) -> Iterator[Placed]:
    yield from _certainties(data)
    named = (("never", data.never), ("error_if", data.error_if), ("warning_if", data.warning_if),
             ("note_if", data.note_if))  # fmt: skip
    yield from (Placed(text, (name,)) for name, text in named if text is not None)
    for at, fix in enumerate(data.fix):
        if fix.when is not None:
            yield Placed(fix.when, ("fix", at, "when"))
    for text, path in _texts(data):
        for at, variant in enumerate(() if isinstance(text, str) else text):
            if variant.when is not None:
                yield Placed(variant.when, (*path, at))


def _parsed(placed: Placed) -> Condition:
    try:
        return parse_condition(placed.text)
    except ValueError as error:
        raise Misfit(str(error), *placed.path) from error


def _names(data: RuleData) -> Iterator[tuple[Name, TomlPath]]:
    """Every name in any condition, all of which are parsed."""
    for placed in _conditions(data):
        for name in names_in(_parsed(placed)):
            yield name, placed.path


def unknown_signs(rule: Rule, known: set[str]) -> dict[str, TomlPath]:
    """Signs that the rule names and nothing declares, and where."""
    own = {signature.id for signature in rule.signatures} | {fact.sign for fact in rule.data.fact}
    declared = own | known | FACTS.keys()
    named = [(name.sign, path) for name, path in _names(rule.data)]
    named += [(sign, ("evidence", at)) for at, sign in enumerate(rule.data.evidence)]
    unknown: dict[str, TomlPath] = {}
    for sign, path in named:
        if sign not in declared:
            unknown.setdefault(sign, path)
    return unknown


def used_values(rule: Rule) -> dict[tuple[str, str], TomlPath]:
    """Sign and group of each captured value that the rule asks for or shows, and where."""
    used: dict[tuple[str, str], TomlPath] = {}
    for name, path in _names(rule.data):
        if name.value is not None:
            used.setdefault((name.sign, name.value), path)
    for placed in _shown(rule.data):
        for captured in captured_values(placed.text):
            used.setdefault(captured, placed.path)
    return used
