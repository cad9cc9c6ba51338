"""The verbs of the doctor, one short function each: the second page of `flow.py`."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.apply import applying, undoing
from flatout.apply.actions import shown
from flatout.apply.undoing import Obstacle
from flatout.doctor.diagnose import Look, case_from_machine, case_from_text, diagnose, nowhere
from flatout.doctor.families import FAMILIES, RULES
from flatout.doctor.planning import with_plans
from flatout.doctor.redaction import redacted
from flatout.doctor.rule import Rule
from flatout.doctor.sarif import sarif
from flatout.doctor.shown_text import Shown
from flatout.errors import UsageError
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.doctor_request import DoctorRequest
from flatout.nouns.examined import Examined
from flatout.nouns.finding import Evidence, Finding
from flatout.nouns.journal import Applied, StepOutcome
from flatout.nouns.machine import Machine
from flatout.nouns.outcome import Outcome
from flatout.nouns.plan import Plan
from flatout.nouns.run import Run
from flatout.probes.examination import GLANCE_S, glance
from flatout.probes.examination import examine as examine_machine
from flatout.system import journal, texts
from flatout.system.environments import find_interpreter
from flatout.system.made_environments import asked_python
from flatout.system.reading import list_runs
from flatout.system.runs import RunFolder
from flatout.system.system import LocalSystem
from flatout.system.together import begin

# Of what a failed process has printed, what is looked at: the end tells.
_LOG_BYTES = 256 * 1024
_MOST_CAUSES = 2


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as somebody sends it. source: where its facts come from, in one that is a test."""

    recording_version: int
    machine: Machine
    source: str | None = None


def examine(request: DoctorRequest) -> Examined:
    """Reads this machine, or a recording of one, and names what is wrong.

    Raises:
        UsageError: python-not-found, not-a-recording.
    """
    if request.replayed:
        given = {"--python": request.python, "--env": request.env, "--deep": request.is_deep}
        warnings = tuple(
            f"{option} has no effect with --from: this machine is not looked at"
            for option, value in given.items()
            if value
        )
        return msgspec.structs.replace(replay(Path(request.replayed)), warnings=warnings)
    interpreter = find_interpreter(asked_python(request.python, request.env))
    system = LocalSystem()
    examination = examine_machine(system, interpreter, is_deep=request.is_deep)
    examined = judge(examination.machine, examination.said)
    named = map(system.environment.get, ("SUDO_USER", "USER", "LOGNAME"))
    user = next(filter(None, named), "")
    planned = with_plans(examined.diagnosis, examined.machine, user)
    return msgspec.structs.replace(examined, diagnosis=planned)


def judge(machine: Machine, said: str = "") -> Examined:
    """Names what is wrong with a machine that was read. said: by its programs, of the GPU."""
    diagnosis = diagnose(case_from_machine(machine, RULES, said), RULES)
    found = {one.rule for one in diagnosis.findings}
    families = {
        rule.id: family for family, rules in FAMILIES.items() for rule in rules if rule.id in found
    }
    return Examined(machine=machine, diagnosis=diagnosis, families=families)


def report(examined: Examined) -> dict[str, Any]:
    """All of it for programs, as far as others may see it: it is what people send."""
    shown = as_shown(examined.diagnosis)
    return {
        "report_version": 1,
        "machine": redacted(examined.machine),
        "findings": shown.findings,
        "undecided": shown.undecided,
    }


def apply(plan: Plan) -> Generator[StepOutcome]:
    """Carries out a plan, step by step, while it is iterated over; asks nothing.

    Raises:
        UsageError: changes-under-way.
    """
    return applying.apply(plan)


def previews(plan: Plan) -> Iterator[str]:
    """What commands print that tell beforehand what a step will do, of apt or WSL say."""
    return filter(None, map(shown, plan.steps))


def changes() -> list[Applied]:
    """All plans that were applied here, the newest first."""
    return journal.entries()[::-1]


def change_to_undo(id: str | None) -> Applied:
    """The change of that id, else the newest that is not undone.

    Raises:
        UsageError: no-such-change, nothing-to-undo.
    """
    if id is not None:
        return journal.entry(id)
    newest = next((one for one in changes() if one.status != "undone"), None)
    if newest is None:
        raise UsageError(
            "nothing-to-undo",
            "flatout has changed nothing that is not undone already.",
            fix="flatout undo --list",
        )
    return newest


def changed_since(applied: Applied) -> tuple[Obstacle, ...]:
    """What somebody else has changed since, and an undo would overwrite."""
    return undoing.obstacles(applied)


def undo(applied: Applied, *, is_forced: bool = False) -> Generator[str]:
    """Takes a change back while it is iterated over; yields what was put back, in words.

    Raises:
        UsageError: undone-already, changed-since, changes-under-way.
        RunFailed: step-failed.
    """
    return undoing.undo(applied, is_forced=is_forced)


def as_shown(diagnosis: Diagnosis) -> Diagnosis:
    """The findings without names and paths of anybody in their evidence."""
    return Shown(RULES).diagnosis(diagnosis)


def as_sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """The findings as SARIF."""
    return sarif(as_shown(diagnosis).findings, __version__)


def recording_text(machine: Machine) -> str:
    """What of a machine may be sent to others, as the text of a recording."""
    recording = Recording(recording_version=1, machine=redacted(machine))
    return msgspec.json.format(msgspec.json.encode(recording), indent=1).decode() + "\n"


def write_recording(text: str, file: str) -> None:
    """Writes a recording, where there is no file yet.

    Raises:
        UsageError: recording-exists.
    """
    if Path(file).exists():
        raise UsageError("recording-exists", f"{file} is there already.", fix="choose another name")
    texts.write(Path(file), text)


def replay(file: Path) -> Examined:
    """Judges the machine of a recording; this one is not looked at.

    Raises:
        UsageError: not-a-recording.
    """
    text = b"".join(texts.pieces_of(file))
    try:
        recording = msgspec.json.decode(text, type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            "not-a-recording",
            f"{file} is no recording of a machine.",
            because=str(error),
            fix="flatout doctor --record FILE, on the machine in question",
        ) from error
    return judge(recording.machine)


def explain(subject: str | None, *, is_here: bool | None = None) -> Diagnosis | Rule:
    """The causes told by a text, or the rule of that id.

    Args:
        subject: a file, "-" for what is piped in, or a rule's id; where None, what is piped in,
            else what the last failed run left.
        is_here: the text is from this machine, whose facts are added. Where None, only what is
            piped in without a name and what a run left is taken to be, unless it tells of another
            one.

    Raises:
        UsageError: nothing-to-explain.
    """
    if subject is None:
        return _piped_or_last(is_here=is_here)
    if subject == "-":
        return explain_text(texts.pieces_of_stdin(), _look(is_here=bool(is_here)))
    rule = next((one for one in RULES if one.id == subject), None)
    if Path(subject).is_file():
        return explain_text(texts.pieces_of(Path(subject)), _look(is_here=bool(is_here)))
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


def explain_text(pieces: Iterable[bytes], here: Look = nowhere) -> Diagnosis:
    """The causes told by a text, most likely first. here: the machine that it may come from."""
    return diagnose(case_from_text(pieces, RULES, here), RULES)


def causes_of(outcome: Outcome) -> tuple[Finding, ...]:
    """What the rules name as the cause of a failed training: from what it told and printed.

    Its machine is the one that was read when it began, so nothing is asked anew.
    """
    if outcome.finding is None:
        return ()
    run = outcome.run
    log = RunFolder(Path(run.folder)).log
    printed = texts.end_of(log, _LOG_BYTES) if log.exists() else b""
    return causes_in(outcome.finding, printed, run.header.machine)


def causes_in(
    finding: Finding, printed: bytes, machine: Machine | None = None
) -> tuple[Finding, ...]:
    """What the rules name as the cause of an error, at most two; none where they know none.

    Args:
        finding: the error.
        printed: by the process that failed; its traceback, above all.
        machine: where that was.
    """
    said = b"".join(_told([finding]))
    found = explain_text([said, printed], lambda: machine).findings
    own = said.count(b"\n")
    return tuple(
        _placed(one, own)
        for one in found
        if one.severity == "error" and one.certainty != "possible" and _has_line(one)
    )[:_MOST_CAUSES]


def _has_line(finding: Finding) -> bool:
    return any(_line_of(one) is not None for one in finding.evidence)


def _placed(finding: Finding, num_own: int) -> Finding:
    """The finding, whose evidence is in the error's own lines or below them in what was printed."""
    placed = [
        msgspec.structs.replace(one, where="the error" if line <= num_own else "its log")
        if isinstance(one, Evidence) and (line := _line_of(one)) is not None
        else one
        for one in finding.evidence
    ]
    return msgspec.structs.replace(finding, evidence=tuple(placed))


def _line_of(evidence: Evidence | str) -> int | None:
    where = (evidence.where or "") if isinstance(evidence, Evidence) else ""
    return int(where.removeprefix("line ")) if where.startswith("line ") else None


def _look(*, is_here: bool, python: str | None = None) -> Look:
    """What reads this machine while the text is read; nothing where that is elsewhere."""
    if not is_here:
        return nowhere
    return begin(lambda: glance(LocalSystem(), python), GLANCE_S + 0.1)


def _piped_or_last(*, is_here: bool | None) -> Diagnosis:
    pieces = texts.pieces_of_stdin()
    first = next(pieces, None)
    if first is not None:
        return explain_text(itertools.chain([first], pieces), _look(is_here=is_here is not False))
    failed = next((run for run in reversed(list_runs()) if _has_failed(run)), None)
    if not isinstance(failed, Run):
        raise UsageError(
            "nothing-to-explain",
            "there is no text, and no run has failed.",
            fix="flatout explain FILE, or: python train.py 2>&1 | flatout explain",
        )
    look = _look(is_here=is_here is not False, python=failed.header.python)
    folder = RunFolder(Path(failed.folder))
    pieces = texts.pieces_of(folder.log) if folder.log.exists() else iter(())
    return explain_text(itertools.chain(_told(failed.findings), pieces), look)


def _has_failed(run: object) -> bool:
    return isinstance(run, Run) and run.status == "failed"


def _told(findings: Iterable[Finding]) -> Iterator[bytes]:
    for one in findings:
        lines = [one.problem, one.because or "", *map(str, one.evidence)]
        yield ("\n".join(lines) + "\n").encode(errors="replace")
