"""The verbs of the doctor, one short function each: the second page of `flow.py`."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flatout.doctor.diagnose import case_from_machine, case_from_text, diagnose
from flatout.doctor.families import RULES
from flatout.doctor.rule import Rule
from flatout.errors import UsageError
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import Finding
from flatout.nouns.machine import Machine
from flatout.nouns.run import Run
from flatout.probes import machine as probes
from flatout.system import texts
from flatout.system.reading import list_runs
from flatout.system.runs import RunFolder
from flatout.system.system import LocalSystem


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and what is wrong with it."""

    machine: Machine
    diagnosis: Diagnosis


def examine(python: str | None = None) -> Examined:
    """Reads this machine, with the environment of that interpreter, and names what is wrong."""
    machine = probes.probe(LocalSystem(), python)
    return Examined(machine=machine, diagnosis=diagnose(case_from_machine(machine, RULES), RULES))


def explain(subject: str | None) -> Diagnosis | Rule:
    """The causes told by a text, or the rule of that id.

    Args:
        subject: a file, "-" for what is piped in, or a rule's id; where None, what is piped in,
            else what the last failed run left.

    Raises:
        UsageError: nothing-to-explain.
    """
    if subject is None:
        return _piped_or_last()
    if subject == "-":
        return explain_text(texts.pieces_of_stdin())
    rule = next((one for one in RULES if one.id == subject), None)
    if Path(subject).is_file():
        return explain_text(texts.pieces_of(Path(subject)))
    if rule is None:
        raise UsageError(
            "nothing-to-explain",
            f"`{subject}` is neither a file nor the id of a rule.",
            fix=_near_rule(subject),
        )
    return rule


def _near_rule(wrong: str) -> str:
    # Not `nearest`, which would name a hundred.
    near = difflib.get_close_matches(wrong, [one.id for one in RULES], n=1)
    return f"did you mean `{near[0]}`?" if near else "name a file; all rules are in docs/rules"


def explain_text(pieces: Iterable[bytes]) -> Diagnosis:
    """The causes told by a text, most likely first. The text may come from any machine."""
    return diagnose(case_from_text(pieces, RULES), RULES)


def _piped_or_last() -> Diagnosis:
    pieces = texts.pieces_of_stdin()
    first = next(pieces, None)
    if first is not None:
        return explain_text(itertools.chain([first], pieces))
    failed = next((run for run in reversed(list_runs()) if _has_failed(run)), None)
    if not isinstance(failed, Run):
        raise UsageError(
            "nothing-to-explain",
            "there is no text, and no run has failed.",
            fix="flatout explain FILE, or: python train.py 2>&1 | flatout explain",
        )
    folder = RunFolder(Path(failed.folder))
    pieces = texts.pieces_of(folder.log) if folder.log.exists() else iter(())
    return explain_text(itertools.chain(_told(failed.findings), pieces))


def _has_failed(run: object) -> bool:
    return isinstance(run, Run) and run.status == "failed"


def _told(findings: Iterable[Finding]) -> Iterator[bytes]:
    for one in findings:
        lines = [one.problem, one.because or "", *map(str, one.evidence)]
        yield ("\n".join(lines) + "\n").encode(errors="replace")
