"""The rules over a case: which causes, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flatout.doctor.logs.facts import FACTS, machine_from
from flatout.doctor.logs.scanning import scan
from flatout.doctor.logs.shared import SHARED
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import Signature
from flatout.nouns.diagnosis import Diagnosis, Undecided
from flatout.nouns.finding import Finding
from flatout.nouns.machine import Machine

_CERTAINTIES = ("decided", "likely", "possible")
_SEVERITIES = ("error", "warning", "note")


def case_from_text(chunks: Iterable[bytes], rules: Sequence[Rule]) -> Case:
    """What a text tells: facts and signs."""
    signs = scan(chunks, signatures_of(rules))
    return Case(machine=machine_from(signs), signs=signs)


def case_from_machine(machine: Machine, rules: Sequence[Rule], said: str = "") -> Case:
    """What a machine tells, and what its programs said of the GPU when they were asked."""
    lines = [*_told(machine), said]
    return Case(
        machine=machine,
        signs=scan(["\n".join(lines).encode(errors="replace")], signatures_of(rules)),
        is_here=True,
    )


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
    explains is left out.
    """
    by_id = {rule.id: rule for rule in rules}
    found = [finding for rule in rules if (finding := rule.check(case))]
    for finding in found:
        assert finding.rule in by_id, f"{finding.rule} is not the name of a rule's file"

    def rank(finding: Finding) -> tuple[int, int, int, str]:
        certainty = _CERTAINTIES.index(finding.certainty)
        severity = _SEVERITIES.index(finding.severity)
        return certainty, severity, -by_id[finding.rule].prior, finding.rule

    found.sort(key=rank)
    kept: list[Finding] = []
    for finding in found:
        causes = [one for one in found if finding.rule in by_id[one.rule].explains]
        if not any(_is_as_certain(cause, finding) for cause in causes):
            kept.append(_with_page(finding))
    return Diagnosis(findings=tuple(kept), undecided=_undecided(kept))


def _is_as_certain(one: Finding, other: Finding) -> bool:
    return _CERTAINTIES.index(one.certainty) <= _CERTAINTIES.index(other.certainty)


def _with_page(finding: Finding) -> Finding:
    see = finding.see or f"flatout explain {finding.rule}"
    return msgspec.structs.replace(finding, see=see)


def _undecided(findings: Sequence[Finding]) -> tuple[Undecided, ...]:
    """What would decide, where the first finding is not decided by evidence."""
    if not findings or findings[0].certainty == "decided":
        return ()
    open_ones = [one for one in findings if one.certainty == findings[0].certainty]
    commands = dict.fromkeys(command for one in open_ones for command in one.confirm)
    between = tuple(one.rule for one in open_ones)
    return (Undecided(between=between, run=tuple(commands) or ("flatout doctor",)),)
