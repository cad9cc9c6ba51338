"""All rules: those that flatout ships, and a user's own."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
from flatout.doctor.toml_text import Misfit
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
        "scan/xid.py", "signature.py", "toml_text.py",
    )
)  # fmt: skip
# If these change, patterns are tried again.
_TRIAL = (
    Path(__file__).with_name("hostile_text.py"),
    Path(__file__).with_name("pattern_trial.py"),
    Path(__file__).parents[1] / "system/pattern_child.py",
)


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
    """What is kept between processes: decoding it is ten times faster than reading the files.

    verdicts: of patterns of a user's own that were tried. trial_stamp: what they were tried with.
    """

    stamp: str
    whole: RuleSet
    verdicts: dict[str, str | None] = {}
    trial_stamp: str = ""


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
    whole, unread = _compiled().whole, rule_files.own_rules().unread
    return msgspec.structs.replace(whole, problems=(*unread, *whole.problems)) if unread else whole


@functools.cache
def _compiled() -> _Compiled:
    shipped, own = rule_files.shipped_rules(RULES_FOLDER), rule_files.own_rules().files
    stamp = rule_files.stamp([*_READERS, _SHARED, *shipped, *own])
    known = rule_files.recall(_Compiled)
    if known is not None and known.stamp == stamp:
        return known
    trial_stamp = _trial_stamp()
    verdicts = known.verdicts if known and known.trial_stamp == trial_stamp else {}
    result = with_own(read_shipped(shipped), own, verdicts)
    compiled = _Compiled(
        stamp=stamp, whole=result.whole, verdicts=result.verdicts, trial_stamp=trial_stamp
    )
    if result.is_lasting:
        rule_files.keep(compiled)
    return compiled


def _trial_stamp() -> str:
    return f"{rule_files.stamp(_TRIAL)} {sys.version}"


def slow_patterns(rule: Rule) -> list[Misfit]:
    """The rule's patterns that can take forever. What a trial shows is kept for next time."""
    from flatout.doctor.pattern_trial import patterns_of, refused, tried

    compiled, patterns = _compiled(), patterns_of(rule)
    # What is kept may be from before the trial changed.
    stamp = _trial_stamp()
    known = compiled.verdicts if compiled.trial_stamp == stamp else {}
    trial = tried(patterns, known)
    if trial.verdicts != known:
        rule_files.keep(
            msgspec.structs.replace(compiled, verdicts=trial.verdicts, trial_stamp=stamp)
        )
    return refused(patterns, trial)


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


class WithOwn(NamedTuple):
    """A release's rules and a user's. verdicts: of their patterns.

    is_lasting: nothing failed that may not fail next time.
    """

    whole: RuleSet
    verdicts: dict[str, str | None]
    is_lasting: bool = True


def with_own(release: RuleSet, files: Sequence[Path], verdicts: dict[str, str | None]) -> WithOwn:
    """The rules of a release and those in a user's files, with what is wrong in these.

    Args:
        release: the rules of a release.
        files: a user's files.
        verdicts: of patterns that were tried before.
    """
    read, problems = [], []
    for path in files:
        try:
            read.append(read_rule(path))
        except RuleProblem as problem:
            problems.append(str(problem))
    if not read:
        whole = msgspec.structs.replace(release, problems=tuple(problems))
        return WithOwn(whole, verdicts)
    # Only here: most people have no rules of their own.
    from flatout.doctor.pattern_trial import patterns_of, refused, tried

    whole = release
    trial = tried([pattern for one in read for pattern in patterns_of(one.rule)], verdicts)
    for one in read:
        found = [*problems_of(one.rule, whole), *refused(patterns_of(one.rule), trial)]
        if found:
            problems += [f"{one.path}: {misfit.in_text(one.text)}" for misfit in found]
        else:
            whole = msgspec.structs.replace(whole, rules=(*whole.rules, one.rule))
    whole = msgspec.structs.replace(whole, problems=tuple(problems))
    return WithOwn(whole, trial.verdicts, trial.failed is None)


class ReadRule(NamedTuple):
    """A rule and the text of its file."""

    path: Path
    text: str
    rule: Rule


def read_rule(path: Path) -> ReadRule:
    """A rule in a user's file, or in a file of the package.

    Raises:
        RuleProblem: the file cannot be read, or is no valid rule.
    """
    try:
        file = rule_files.read_rule(path)
    except OSError as error:
        raise RuleProblem(file=str(path), why=error.strerror or str(error)) from error
    except ValueError as error:
        raise RuleProblem(file=str(path), why=str(error)) from error
    is_own = path.resolve().parent.parent != RULES_FOLDER.resolve()
    family = OWN if is_own else file.family
    return ReadRule(
        path, file.text, rule_from(file.text, file=str(path), family=family, is_own=is_own)
    )


def problems_of(rule: Rule, others: RuleSet) -> list[Misfit]:
    """What does not fit between a rule and all others."""
    signatures = {signature.id for signature in others.signatures}
    signs = signatures | {fact.sign for other in others.rules for fact in other.data.fact}
    values = used_values(rule)
    found = [
        Misfit(f"`{sign}` is in a condition, but no signature has this id", *path)
        for sign, path in unknown_signs(rule, signs).items()
    ]
    groups = {
        signature.id: re.compile(signature.pattern or "").groupindex
        for signature in (*others.signatures, *rule.signatures)
        if signature.id in {sign for sign, _ in values}
    }
    found += [
        Misfit(
            f"`{sign}.{name}` is used, but no signature `{sign}` captures a group `{name}`", *path
        )
        for (sign, name), path in sorted(values.items())
        if name not in groups.get(sign, {})
    ]
    other = others.find(rule.id)
    if other is not None:
        whose = "of your own" if other.family == OWN else "that flatout ships"
        found.append(Misfit(f"there is already a rule `{rule.id}` {whose}", "id"))
    found += [
        Misfit(
            f"there is already a signature `{signature.id}`; a condition can use it without this "
            "one",
            "signature", at, "id",
        )
        for at, signature in enumerate(rule.signatures)
        if signature.id in signatures
    ]  # fmt: skip
    known = {other.id for other in others.rules} | {rule.id}
    return found + [
        Misfit(f"`explains` names `{id}`, which is no rule", "explains", at)
        for at, id in enumerate(rule.data.explains)
        if id not in known
    ]
