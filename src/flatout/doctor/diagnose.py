"""The rules over a case: which causes, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from flatout.doctor.logs.facts import FACTS, machine_from
from flatout.doctor.logs.scanning import scan
from flatout.doctor.logs.shared import SHARED
from flatout.doctor.rule import Case, Rule
from flatout.doctor.same_machine import is_elsewhere, together
from flatout.doctor.signature import Sign, Signature
from flatout.nouns.diagnosis import Diagnosis, Undecided
from flatout.nouns.finding import Evidence, Finding
from flatout.nouns.machine import Machine

_CERTAINTIES = ("decided", "likely", "possible")
_SEVERITIES = ("error", "warning", "note")
# Where a fact was read that a text tells by the way.
_IN_TEXT = "in text"

Signs = Mapping[str, tuple[Sign, ...]]
Look = Callable[[], Machine | None]


def nowhere() -> None:
    """The machine of a text that may come from any."""
    return None


def case_from_text(
    chunks: Iterable[bytes],
    rules: Sequence[Rule],
    here: Look = nowhere,
) -> Case:
    """What a text tells: facts and signs.

    Args:
        chunks: the text.
        rules: whose signs are looked for.
        here: asked after the text was read: the machine that it was printed on, or None where that
            is not known. What the text tells wins; a text that tells of another machine is left
            to itself.
    """
    signs: Signs = scan(chunks, signatures_of(rules))
    told = machine_from(signs)
    machine = here()
    if machine is None or is_elsewhere(told, machine):
        signs = _with_facts(signs, told, rules, is_told=True)
        return Case(machine=told, signs=signs, is_text=True)
    both = together(told, machine)
    return Case(
        machine=both, signs=_with_facts(signs, both, rules), is_text=True, is_here=True
    )  # fmt: skip


def case_from_machine(machine: Machine, rules: Sequence[Rule], said: str = "") -> Case:
    """What a machine tells, and what its programs said of the GPU when they were asked."""
    lines = [*_told(machine), said]
    signs = scan(["\n".join(lines).encode(errors="replace")], signatures_of(rules))
    return Case(machine=machine, signs=_with_facts(signs, machine, rules), is_here=True)


def _with_facts(
    signs: Signs, machine: Machine, rules: Sequence[Rule], *, is_told: bool = False
) -> Signs:
    """The signs, and those that the facts of a machine leave. is_told: by a text alone."""
    found = dict(signs)
    for rule in rules:
        for one in rule.readings:
            found.setdefault(one.sign, ())
            if is_told and not one.is_for_texts:
                continue
            facts = tuple(
                Sign(id=one.sign, line=0, text=fact.text, where=_IN_TEXT if is_told else fact.where)
                for fact in one.read(machine)
            )
            found[one.sign] = (*found[one.sign], *facts)
    return found


def _told(machine: Machine) -> list[str]:
    """What NVML, nvidia-smi and CUDA gave for reasons; not what flatout says of them."""
    reasons = dict.fromkeys(machine.unread.get(path, "") for path in ("gpus", "driver", "cuda"))
    parts = [part for reason in reasons for part in reason.split("; ")]
    programs, ours = ("NVML: ", "nvidia-smi: "), ("NVML: there is no ", "nvidia-smi: not found")
    parts = [part for part in parts if part.startswith(programs) and not part.startswith(ours)]
    lines = list(parts)
    # As NVML's own programs say it.
    lines += [f"Failed to initialize {part}" for part in parts if part.startswith("NVML: ")]
    if machine.cuda_start and machine.cuda_start.error:
        lines.append(f"cuInit: {machine.cuda_start.error}")
    return lines


def signatures_of(rules: Sequence[Rule]) -> tuple[Signature, ...]:
    """All that is looked for in a text: facts, shared signatures and those of the rules."""
    return (*FACTS, *SHARED, *(one for rule in rules for one in rule.signatures))


def diagnose(case: Case, rules: Sequence[Rule]) -> Diagnosis:
    """The causes that fit a case, most likely first.

    What is decided by evidence comes before what is likely, and that before what is possible; then
    what is more severe, then what is more common. A finding that another at least as certain
    explains is left out. Of a text, what is known of the machine alone comes last, and only where
    it is more than a note.
    """
    by_id = {rule.id: rule for rule in rules}
    facts = _facts(case.signs)
    found = [finding for rule in rules if (finding := _found(rule, case, facts))]
    for finding in found:
        assert finding.rule in by_id, f"{finding.rule} is not the name of a rule's file"
    beside = {one.rule for one in found if case.is_text and _is_of(facts, one)}
    found = [one for one in found if one.rule not in beside or one.severity != "note"]

    def rank(finding: Finding) -> tuple[bool, int, int, int, str]:
        certainty = _CERTAINTIES.index(finding.certainty)
        severity = _SEVERITIES.index(finding.severity)
        is_beside = finding.rule in beside
        return is_beside, certainty, severity, -by_id[finding.rule].prior, finding.rule

    found.sort(key=rank)
    kept: list[Finding] = []
    for finding in found:
        causes = [one for one in found if finding.rule in by_id[one.rule].explains]
        if not any(_is_as_certain(cause, finding) for cause in causes):
            kept.append(finding)
    return Diagnosis(findings=tuple(kept), undecided=_undecided(kept))


def _facts(signs: Signs) -> frozenset[Evidence]:
    """All facts that stand for a sign."""
    return frozenset(
        Evidence(text=sign.text, where=sign.where)
        for places in signs.values()
        for sign in places
        if sign.where is not None
    )


def _found(rule: Rule, case: Case, facts: frozenset[Evidence]) -> Finding | None:
    """The rule's finding; where facts alone speak, with the weight that the rule gives them."""
    finding = rule.check(case)
    if finding is None or not _is_of(facts, finding):
        return finding
    for one in rule.readings:
        if any(sign.where is not None for sign in case.signs[one.sign]):
            return msgspec.structs.replace(finding, severity=one.severity, certainty=one.certainty)
    return finding


def _is_of(facts: frozenset[Evidence], finding: Finding) -> bool:
    return bool(finding.evidence) and all(one in facts for one in finding.evidence)


def _is_as_certain(one: Finding, other: Finding) -> bool:
    return _CERTAINTIES.index(one.certainty) <= _CERTAINTIES.index(other.certainty)


def _undecided(findings: Sequence[Finding]) -> tuple[Undecided, ...]:
    """What would decide, where the first finding is not decided by evidence."""
    if not findings or findings[0].certainty == "decided":
        return ()
    open_ones = [one for one in findings if one.certainty == findings[0].certainty]
    commands = dict.fromkeys(command for one in open_ones for command in one.confirm)
    between = tuple(one.rule for one in open_ones)
    return (Undecided(between=between, run=tuple(commands) or ("flatout doctor",)),)
