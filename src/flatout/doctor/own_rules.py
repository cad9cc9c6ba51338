"""The actions of `flatout rules`: list all rules, check one of a user's own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.doctor.rule_file import RuleProblem
from flatout.doctor.ruleset import OWN, all_rules, problems_of, read_rule, slow_patterns
from flatout.errors import UsageError
from flatout.system import text_input
from flatout.system.paths import rules_folder


class KnownRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in the list."""

    id: str
    family: str
    problem: str


class KnownRules(msgspec.Struct, frozen=True, kw_only=True):
    """All rules. folder: where a user's own are. problems: what is wrong with some of these."""

    rules: tuple[KnownRule, ...]
    folder: str
    problems: tuple[str, ...] = ()


class CheckedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A valid rule.

    texts: by signature, what a scan looks for first.
    diagnosis: of a text, with this rule; None without a text. is_first: the rule's finding is.
    """

    id: str
    texts: dict[str, tuple[str, ...]]
    diagnosis: Diagnosis | None = None
    is_first: bool = False


def list_rules() -> KnownRules:
    """All rules, a user's own first, then sorted by family."""
    known = all_rules()
    rows = [
        KnownRule(
            id=rule.id,
            family=rule.family,
            problem=rule.data.problem
            if isinstance(rule.data.problem, str)
            else rule.data.problem[-1].text,
        )
        for rule in known.rules
    ]
    rows.sort(key=lambda row: (row.family != OWN, row.family, row.id))
    return KnownRules(rules=tuple(rows), folder=str(rules_folder()), problems=known.problems)


def check_rule(file: str, case: str | None = None) -> CheckedRule:
    """Checks a rule's file.

    Args:
        file: its path.
        case: the path of a text that the rule should explain.

    Raises:
        UsageError: not-a-rule, log-not-readable.
    """
    known = all_rules()
    try:
        read = read_rule(Path(file).absolute())
    except RuleProblem as problem:
        raise _not_a_rule(file, problem.why) from problem
    rule = read.rule
    # It may already be in its folder.
    others = msgspec.structs.replace(
        known,
        rules=tuple(
            other for other in known.rules if other.id != rule.id or other.family != rule.family
        ),
    )
    problems = [*problems_of(rule, others), *slow_patterns(rule)]
    if problems:
        raise _not_a_rule(file, "; ".join(problem.in_text(read.text) for problem in problems))
    texts = {signature.id: signature.texts for signature in rule.signatures}
    if case is None:
        return CheckedRule(id=rule.id, texts=texts)
    ruleset = msgspec.structs.replace(others, rules=(*others.rules, rule))
    found = diagnose(case_from_text(text_input.pieces_of_log(Path(case)), ruleset), ruleset)
    first = found.findings[0].rule if found.findings else None
    return CheckedRule(
        id=rule.id,
        texts=texts,
        diagnosis=msgspec.structs.replace(found, source=case),
        is_first=first == rule.id,
    )


def _not_a_rule(file: str, because: str) -> UsageError:
    return UsageError(
        "not-a-rule",
        f"{file} is not a valid rule.",
        because=because,
        fix="correct the file; `flatout docs rules` explains every field",
    )
