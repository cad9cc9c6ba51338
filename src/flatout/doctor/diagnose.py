"""Applies the rules to a case and ranks the causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from flatout.doctor.model.diagnosis import Diagnosis, Undecided
from flatout.doctor.rule import Case, Rule
from flatout.doctor.ruleset import RuleSet
from flatout.doctor.same_machine import is_elsewhere, merge_machines
from flatout.doctor.scan.facts import machine_from
from flatout.doctor.scan.scanner import scan
from flatout.doctor.signature import Sign
from flatout.schema.finding import Evidence, Finding
from flatout.schema.machine import NO_NVML, NO_SMI, Machine

_CERTAINTIES = ("decided", "likely", "possible")
_SEVERITIES = ("error", "warning", "note")
# The source shown for a fact that comes from a text.
_IN_TEXT = "in text"

Signs = Mapping[str, tuple[Sign, ...]]
MachineReader = Callable[[], Machine | None]


def no_machine() -> None:
    """No machine, for a text that may come from anywhere."""
    return None


def case_from_text(
    chunks: Iterable[bytes],
    ruleset: RuleSet,
    here: MachineReader = no_machine,
) -> Case:
    """The facts and signs in a text.

    Args:
        chunks: the text.
        ruleset: rules whose signs are looked for.
        here: called after the text was read: the machine that it was printed on, or None if
            unknown. The text takes precedence; if it is from another machine, this one is ignored.
    """
    signs: Signs = scan(chunks, ruleset.signatures)
    described = machine_from(signs)
    machine = here()
    if machine is None or is_elsewhere(described, machine):
        signs = _with_facts(signs, described, ruleset.rules, is_from_text=True)
        return Case(machine=described, signs=signs, is_text=True)
    both = merge_machines(described, machine)
    return Case(
        machine=both, signs=_with_facts(signs, both, ruleset.rules), is_text=True, is_here=True
    )  # fmt: skip


def case_from_machine(machine: Machine, ruleset: RuleSet, output: str = "") -> Case:
    """The facts of a machine, and what its programs printed about the GPU."""
    lines = [*_driver_messages(machine), output]
    signs = scan(["\n".join(lines).encode(errors="replace")], ruleset.signatures)
    return Case(machine=machine, signs=_with_facts(signs, machine, ruleset.rules), is_here=True)


def _with_facts(
    signs: Signs, machine: Machine, rules: Sequence[Rule], *, is_from_text: bool = False
) -> Signs:
    """The signs, plus those of a machine's facts. is_from_text: the facts are only from a text."""
    all_signs = dict(signs)
    for rule in rules:
        for check in rule.fact_checks:
            all_signs.setdefault(check.sign, ())
            if is_from_text and not check.is_for_texts:
                continue
            facts = tuple(
                Sign(
                    id=check.sign,
                    line=0,
                    text=fact.text,
                    where=_IN_TEXT if is_from_text else fact.where,
                )
                for fact in check.read(machine)
            )
            all_signs[check.sign] = (*all_signs[check.sign], *facts)
    return all_signs


def _driver_messages(machine: Machine) -> list[str]:
    """The reasons given by NVML, nvidia-smi and CUDA, without flatout's own wording."""
    reasons = dict.fromkeys(machine.unread.get(path, "") for path in ("gpus", "driver", "cuda"))
    parts = [part for reason in reasons for part in reason.split("; ")]
    programs, ours = ("NVML: ", "nvidia-smi: "), (NO_NVML, NO_SMI)
    parts = [part for part in parts if part.startswith(programs) and not part.startswith(ours)]
    lines = list(parts)
    # In the wording of NVML's own programs.
    lines += [f"Failed to initialize {part}" for part in parts if part.startswith("NVML: ")]
    if machine.cuda_start and machine.cuda_start.error:
        lines.append(f"cuInit: {machine.cuda_start.error}")
    return lines


def diagnose(case: Case, ruleset: RuleSet) -> Diagnosis:
    """The causes that fit a case, most likely first.

    Decided findings come before likely ones, and those before possible ones; then the more severe,
    then the more common. A finding that is explained by another at least as certain is omitted.
    For a text, findings based only on facts of the machine come last, and notes are omitted.
    """
    by_id = {rule.id: rule for rule in ruleset.rules}
    facts = _facts(case.signs)
    findings = [finding for rule in ruleset.rules if (finding := _finding_of(rule, case, facts))]
    only_facts = {item.rule for item in findings if case.is_text and _is_of(facts, item)}
    findings = [item for item in findings if item.rule not in only_facts or item.severity != "note"]

    def rank(finding: Finding) -> tuple[bool, int, int, int, str]:
        certainty = _CERTAINTIES.index(finding.certainty)
        severity = _SEVERITIES.index(finding.severity)
        is_only_facts = finding.rule in only_facts
        return is_only_facts, certainty, severity, -by_id[finding.rule].prior, finding.rule

    findings.sort(key=rank)
    unexplained: list[Finding] = []
    for finding in findings:
        causes = [other for other in findings if finding.rule in by_id[other.rule].explains]
        if not any(_is_as_certain(cause, finding) for cause in causes):
            unexplained.append(finding)
    return Diagnosis(findings=tuple(unexplained), undecided=_undecided(unexplained))


def _facts(signs: Signs) -> frozenset[Evidence]:
    """All facts that produced a sign."""
    return frozenset(
        Evidence(text=sign.text, where=sign.where)
        for hits in signs.values()
        for sign in hits
        if sign.where is not None
    )


def _finding_of(rule: Rule, case: Case, facts: frozenset[Evidence]) -> Finding | None:
    """The rule's finding; if only facts support it, with the severity that the rule gives them."""
    finding = rule.check(case)
    if finding is None or not _is_of(facts, finding):
        return finding
    for check in rule.fact_checks:
        if any(sign.where is not None for sign in case.signs[check.sign]):
            return msgspec.structs.replace(
                finding, severity=check.severity, certainty=check.certainty
            )
    return finding


def _is_of(facts: frozenset[Evidence], finding: Finding) -> bool:
    return bool(finding.evidence) and all(evidence in facts for evidence in finding.evidence)


def _is_as_certain(finding: Finding, other: Finding) -> bool:
    return _CERTAINTIES.index(finding.certainty) <= _CERTAINTIES.index(other.certainty)


def _undecided(findings: Sequence[Finding]) -> tuple[Undecided, ...]:
    """The commands that would decide, if the first finding is not decided."""
    if not findings or findings[0].certainty == "decided":
        return ()
    open_ones = [finding for finding in findings if finding.certainty == findings[0].certainty]
    commands = dict.fromkeys(command for finding in open_ones for command in finding.confirm)
    between = tuple(finding.rule for finding in open_ones)
    return (Undecided(between=between, run=tuple(commands) or ("flatout doctor",)),)
