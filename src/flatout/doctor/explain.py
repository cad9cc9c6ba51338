"""The actions of `flatout explain`: explain a text, a rule or error id, or the last failure.

Separate from `api`, because explaining a text needs no machine, or only a quick glance at one.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flatout.doctor.diagnose import MachineReader, case_from_text, diagnose, no_machine
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.doctor.redact_text import shown_to_others
from flatout.doctor.rule_page import page_of
from flatout.doctor.ruleset import all_rules, shipped_rules
from flatout.errors import UsageError, nearest_name
from flatout.schema.exit_status import Outcome
from flatout.schema.finding import Evidence, Finding
from flatout.schema.machine import Machine
from flatout.schema.run import Run
from flatout.system import text_input
from flatout.system.store import error_pages, interpreters
from flatout.system.store.failed_start import failed_start_folder, last_failed_start
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_reader import list_runs
from flatout.system.timeout_threads import begin

# Only the end of a failed process's log is read: it shows the cause.
_LOG_BYTES = 256 * 1024
_MOST_CAUSES = 2
# Longest part of an unknown argument to quote, in characters.
_SHOWN = 60


class Page(msgspec.Struct, frozen=True):
    """The documentation of a rule, an advice of `profile`, or one of flatout's own errors."""

    id: str
    text: str


def explain(subject: str | None, *, is_here: bool | None = None) -> Diagnosis | Page:
    """The causes found in a text, or the page of that id.

    Args:
        subject: a file, "-" for piped input, or the id of a rule, an error or an advice; if None,
            piped input, else the output of the last failed run.
        is_here: the text is from this machine, whose facts are added. If None, only piped input
            without "-" and the output of a run are assumed to be, unless they describe another
            machine.

    Raises:
        UsageError: nothing-to-explain, log-not-readable.
    """
    if subject is None:
        return _piped_or_last(is_here=is_here)
    if subject == "-":
        pieces = text_input.pieces_of_stdin()
        return _explained("standard input", pieces, _machine_reader(is_here=bool(is_here)))
    if text_input.is_readable(Path(subject)):
        pieces = text_input.pieces_of_log(Path(subject))
        return _explained(subject, pieces, _machine_reader(is_here=bool(is_here)))
    return page_by_id(subject)


def page_by_id(subject: str) -> Page:
    """The page of a rule, an error or an advice; nothing is opened by that name.

    Raises:
        UsageError: nothing-to-explain.
    """
    rule = all_rules().find(subject)
    if rule is not None:
        return Page(rule.id, page_of(rule))
    pages = error_pages.read_pages() | error_pages.read_advice()
    if subject not in pages:
        raise UsageError(
            "nothing-to-explain",
            f"`{textwrap.shorten(subject, _SHOWN)}` is neither a file nor the id of a rule, an "
            "error or an advice.",
            fix=_near_page(subject, [*(rule.id for rule in all_rules().rules), *pages]),
        )
    return Page(subject, pages[subject])


def as_shown(diagnosis: Diagnosis) -> Diagnosis:
    """The findings as they may be shared: without personal names and paths."""
    shown = shown_to_others(diagnosis, shipped_rules().rules)
    # A path may contain a user's name.
    return msgspec.structs.replace(shown, source=shown.source and Path(shown.source).name)


def _near_page(wrong: str, ids: list[str]) -> str:
    if any(sign.isspace() for sign in wrong):
        return "pipe text in instead of typing it: python train.py 2>&1 | flatout explain"
    # Not `nearest`, which would list a hundred.
    near = nearest_name(wrong, ids)
    if near is not None:
        return f"did you mean `{near}`?"
    return "give a file, the id of an advice, or the one after `see:` in an error"


def explain_text(pieces: Iterable[bytes], here: MachineReader = no_machine) -> Diagnosis:
    """The causes found in a text, most likely first. here: reads the machine it may be from."""
    ruleset = all_rules()
    return diagnose(case_from_text(pieces, ruleset, here), ruleset)


def causes_of(outcome: Outcome) -> tuple[Finding, ...]:
    """The causes of a failed training, from its error and its output.

    Uses the machine facts that were read when it started; nothing is probed again.
    """
    if outcome.finding is None:
        return ()
    run = outcome.run
    log = RunFolder(Path(run.folder)).log
    printed = text_input.end_of(log, _LOG_BYTES) if log.exists() else b""
    return causes_in(outcome.finding, printed, run.header.machine)


def causes_in(
    finding: Finding, printed: bytes, machine: Machine | None = None
) -> tuple[Finding, ...]:
    """The causes of an error by the rules: at most two, or none if unknown.

    Args:
        finding: the error.
        printed: the failed process's output, with its traceback.
        machine: the machine that it ran on.
    """
    error_text = b"".join(_error_lines([finding]))
    findings = explain_text([error_text, printed], lambda: machine).findings
    num_own = error_text.count(b"\n")
    return tuple(
        _with_sources(cause, num_own)
        for cause in findings
        if cause.severity == "error" and cause.certainty != "possible" and _has_line(cause)
    )[:_MOST_CAUSES]


def _has_line(finding: Finding) -> bool:
    return any(_line_of(evidence) is not None for evidence in finding.evidence)


def _with_sources(finding: Finding, num_own: int) -> Finding:
    """The finding, with "the error" or "its log" as the source of its evidence."""
    placed = [
        msgspec.structs.replace(evidence, where="the error" if line <= num_own else "its log")
        if isinstance(evidence, Evidence) and (line := _line_of(evidence)) is not None
        else evidence
        for evidence in finding.evidence
    ]
    return msgspec.structs.replace(finding, evidence=tuple(placed))


def _line_of(evidence: Evidence | str) -> int | None:
    where = (evidence.where or "") if isinstance(evidence, Evidence) else ""
    return int(where.removeprefix("line ")) if where.startswith("line ") else None


def _machine_reader(*, is_here: bool, python: str | None = None) -> MachineReader:
    """Reads this machine while the text is read; no machine if the text is from elsewhere."""
    if not is_here:
        return no_machine
    # The probes are imported only if needed, to keep explaining a small text fast.
    from flatout.system.host_system import LocalSystem
    from flatout.system.probes.examination import GLANCE_S, glance

    return begin(lambda: glance(LocalSystem(), python), GLANCE_S + 0.1)


def _piped_or_last(*, is_here: bool | None) -> Diagnosis:
    pieces = text_input.pieces_of_stdin()
    first = next(pieces, None)
    if first is not None:
        pieces = itertools.chain([first], pieces)
        return _explained("standard input", pieces, _machine_reader(is_here=is_here is not False))
    failed = _last_failed()
    if failed is None:
        raise UsageError(
            "nothing-to-explain",
            "there is no text to explain, and no run has failed.",
            fix="flatout explain FILE, or: python train.py 2>&1 | flatout explain",
        )
    # A run's folder may come from another user, and name a program of theirs.
    python = failed.header.python
    known = python if interpreters.is_known(python) else None
    here = _machine_reader(is_here=is_here is not False, python=known)
    folder = RunFolder(Path(failed.folder))
    pieces = text_input.pieces_of(folder.log) if folder.log.exists() else iter(())
    name = failed.header.spec.name
    is_run = folder.path != failed_start_folder()
    source = f"the run {failed.id}" if is_run else f"the last failed start, of {name}"
    pieces = itertools.chain(_error_lines(failed.findings), pieces)
    return _explained(f"{source}: its error and its worker.log", pieces, here)


def _explained(source: str, pieces: Iterable[bytes], here: MachineReader) -> Diagnosis:
    """The causes found in a text, with the name of its source."""
    is_empty = True

    def noted() -> Iterator[bytes]:
        nonlocal is_empty
        for piece in pieces:
            is_empty = is_empty and not piece.strip()
            yield piece

    diagnosis = explain_text(noted(), here)
    return msgspec.structs.replace(
        diagnosis, source=source, is_empty=is_empty, warnings=all_rules().warnings
    )


def _last_failed() -> Run | None:
    """The last failure: a run, or a start that left no run."""
    runs = [run for run in list_runs() if isinstance(run, Run) and run.status == "failed"]
    failed = [*runs[-1:], *filter(None, [last_failed_start()])]
    return max(failed, key=lambda run: run.header.created_at, default=None)


def _error_lines(findings: Iterable[Finding]) -> Iterator[bytes]:
    for finding in findings:
        lines = [finding.problem, finding.because or "", *map(str, finding.evidence)]
        yield ("\n".join(lines) + "\n").encode(errors="replace")
