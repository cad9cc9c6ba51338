"""All rules: those that flatout ships, and a user's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.doctor.rule import Rule
from flatout.doctor.rule_file import (
    RuleProblem,
    rule_from,
    signatures_from,
    unknown_signs,
    used_values,
)
from flatout.doctor.scan.facts import FACTS
from flatout.doctor.signature import Signature
from flatout.system.store import rule_files

RULES_FOLDER = Path(__file__).with_name("rules")
_SHARED = RULES_FOLDER / "shared.toml"
# Family of a user's own rules.
OWN = "own"
# These decide what a file means: if they change, so does everything made of the files.
_READERS = tuple(
    Path(__file__).parent / name
    for name in (
        "condition.py", "prefilter.py", "rule.py", "rule_data.py", "rule_file.py", "scan/facts.py",
        "scan/xid.py", "signature.py",
    )
)  # fmt: skip


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """Rules, ready to use.

    shared: signatures that several rules use. problems: own files that are no valid rules.
    """

    rules: tuple[Rule, ...]
    shared: tuple[Signature, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """All signatures to look for: facts, shared signatures and those of the rules."""
        return (*FACTS, *self.shared, *(one for rule in self.rules for one in rule.signatures))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problems as warnings."""
        return tuple(f"own rule ignored: {problem}" for problem in self.problems)

    def find(self, id: str) -> Rule | None:
        """The rule with that id."""
        return next((rule for rule in self.rules if rule.id == id), None)


class _Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept between processes: decoding it is ten times faster than reading the files."""

    stamp: str
    whole: RuleSet


@functools.cache
def shipped_rules() -> RuleSet:
    """The rules of this release, without the user's own.

    Raises:
        RuleProblem: one of them is invalid, which tests prevent.
    """
    whole = _compiled().whole
    rules = tuple(rule for rule in whole.rules if rule.family != OWN)
    return RuleSet(rules=rules, shared=whole.shared)


@functools.cache
def all_rules() -> RuleSet:
    """The rules of this release and the user's own; invalid ones of the user are only named."""
    return _compiled().whole


@functools.cache
def _compiled() -> _Compiled:
    shipped, own = rule_files.shipped_rules(RULES_FOLDER), rule_files.own_rules()
    stamp = rule_files.stamp([*_READERS, _SHARED, *shipped, *own])
    known = rule_files.recall(_Compiled)
    if known is not None and known.stamp == stamp:
        return known
    compiled = _Compiled(stamp=stamp, whole=with_own(read_shipped(shipped), own))
    rule_files.keep(compiled)
    return compiled


def read_shipped(files: Sequence[Path]) -> RuleSet:
    """The rules in these files of the package.

    Raises:
        RuleProblem: one of them is invalid.
    """
    shared = signatures_from(rule_files.read_rule(_SHARED).text)
    rules = tuple(
        rule_from(file.text, file=str(file.path), family=file.family)
        for file in map(rule_files.read_rule, files)
    )
    return RuleSet(rules=rules, shared=shared)


def with_own(release: RuleSet, files: Sequence[Path]) -> RuleSet:
    """The rules of a release and those in a user's files, with what is wrong in these."""
    rules, problems = list(release.rules), []
    for path in files:
        try:
            rule = read_own(path)
            found = problems_of(rule, RuleSet(rules=tuple(rules), shared=release.shared))
        except RuleProblem as problem:
            problems.append(str(problem))
            continue
        if found:
            problems += [f"{path}: {why}" for why in found]
        else:
            rules.append(rule)
    return RuleSet(rules=tuple(rules), shared=release.shared, problems=tuple(problems))


def read_own(path: Path) -> Rule:
    """A user's rule.

    Raises:
        RuleProblem: the file cannot be read, or is no valid rule.
    """
    try:
        file = rule_files.read_rule(path)
    except OSError as error:
        raise RuleProblem(file=str(path), why=error.strerror or str(error)) from error
    except ValueError as error:
        raise RuleProblem(file=str(path), why=str(error)) from error
    return rule_from(file.text, file=str(path), family=OWN, is_own=True)


def problems_of(rule: Rule, others: RuleSet) -> list[str]:
    """What does not fit between a rule and all others."""
    signatures = {signature.id for signature in others.signatures}
    signs = signatures | {fact.sign for other in others.rules for fact in other.data.fact}
    values = used_values(rule)
    found = [
        f"`{sign}` is in a condition, but no signature has this id"
        for sign in unknown_signs(rule, signs)
    ]
    groups = {
        signature.id: re.compile(signature.pattern or "").groupindex
        for signature in (*others.signatures, *rule.signatures)
        if signature.id in {sign for sign, _ in values}
    }
    found += [
        f"`{sign}.{name}` is used, but no signature `{sign}` captures a group `{name}`"
        for sign, name in sorted(values)
        if name not in groups.get(sign, {})
    ]
    if others.find(rule.id) is not None:
        found.append(f"there is already a rule `{rule.id}`")
    found += [
        f"there is already a signature `{signature.id}`; a condition can use it without this one"
        for signature in rule.signatures
        if signature.id in signatures
    ]
    known = {other.id for other in others.rules} | {rule.id}
    return found + [
        f"`explains` names `{id}`, which is no rule" for id in rule.data.explains if id not in known
    ]
