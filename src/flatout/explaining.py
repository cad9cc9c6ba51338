"""The verbs of `flatout explain`, one short function each: texts, rules, and what has failed.

Apart from `consult`, because a text is explained without looking at a machine, or at a glance.
"""

from __future__ import annotations

import difflib
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flatout.doctor.diagnose import Look, case_from_text, diagnose, nowhere
from flatout.doctor.families import RULES
from flatout.doctor.shown_text import shown_to_others
from flatout.errors import UsageError
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import Evidence, Finding
from flatout.nouns.machine import Machine
from flatout.nouns.outcome import Outcome
from flatout.nouns.run import Run
from flatout.system import environments, error_pages, texts
from flatout.system.failed_start import failed_start_folder, last_failed_start
from flatout.system.reading import list_runs
from flatout.system.runs import RunFolder
from flatout.system.together import begin

# Of what a failed process has printed, what is looked at: the end tells.
_LOG_BYTES = 256 * 1024
_MOST_CAUSES = 2
# Of what somebody gave for a name, in signs.
_SHOWN = 60


class Page(msgspec.Struct, frozen=True):
    """What is written of a rule, or of an error of flatout's own."""

    id: str
    text: str


def explain(subject: str | None, *, is_here: bool | None = None) -> Diagnosis | Page:
    """The causes told by a text, or the page of that id.

    Args:
        subject: a file, "-" for what is piped in, or the id of a rule or an error; where None,
            what is piped in, else what the last failed run left.
        is_here: the text is from this machine, whose facts are added. Where None, only what is
            piped in without a name and what a run left is taken to be, unless it tells of another
            one.

    Raises:
        UsageError: nothing-to-explain, log-not-readable.
    """
    if subject is None:
        return _piped_or_last(is_here=is_here)
    if subject == "-":
        pieces = texts.pieces_of_stdin()
        return _explained("standard input", pieces, _look(is_here=bool(is_here)))
    if texts.is_readable(Path(subject)):
        pieces = texts.pieces_of_log(Path(subject))
        return _explained(subject, pieces, _look(is_here=bool(is_here)))
    rule = next((one for one in RULES if one.id == subject), None)
    if rule is not None:
        return Page(rule.id, rule.page)
    errors = error_pages.read_pages()
    if subject not in errors:
        raise UsageError(
            "nothing-to-explain",
            f"`{textwrap.shorten(subject, _SHOWN)}` is neither a file nor the id of a rule or an "
            "error.",
            fix=_near_page(subject, [*(one.id for one in RULES), *errors]),
        )
    return Page(subject, errors[subject])


def as_shown(diagnosis: Diagnosis) -> Diagnosis:
    """The findings as others may see them: without anybody's names and paths."""
    shown = shown_to_others(diagnosis, RULES)
    # A path may tell whose file it is.
    return msgspec.structs.replace(shown, source=shown.source and Path(shown.source).name)


def _near_page(wrong: str, ids: list[str]) -> str:
    if any(sign.isspace() for sign in wrong):
        return "a text is piped in, not typed: python train.py 2>&1 | flatout explain"
    # Not `nearest`, which would name a hundred.
    near = difflib.get_close_matches(wrong, ids, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return "name a file, or what stands behind `see:` in an error"


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
    # The probes are loaded only where they are needed: explaining a small text takes no longer.
    from flatout.probes.examination import GLANCE_S, glance
    from flatout.system.system import LocalSystem

    return begin(lambda: glance(LocalSystem(), python), GLANCE_S + 0.1)


def _piped_or_last(*, is_here: bool | None) -> Diagnosis:
    pieces = texts.pieces_of_stdin()
    first = next(pieces, None)
    if first is not None:
        pieces = itertools.chain([first], pieces)
        return _explained("standard input", pieces, _look(is_here=is_here is not False))
    failed = _last_failed()
    if failed is None:
        raise UsageError(
            "nothing-to-explain",
            "there is no text, and no run has failed.",
            fix="flatout explain FILE, or: python train.py 2>&1 | flatout explain",
        )
    # A run's folder may come from somebody else, and name a program of theirs.
    python = failed.header.python
    known = python if environments.is_known(python) else None
    look = _look(is_here=is_here is not False, python=known)
    folder = RunFolder(Path(failed.folder))
    pieces = texts.pieces_of(folder.log) if folder.log.exists() else iter(())
    name = failed.header.spec.name
    is_run = folder.path != failed_start_folder()
    source = f"the run {failed.id}" if is_run else f"the last start that failed, of {name}"
    pieces = itertools.chain(_told(failed.findings), pieces)
    return _explained(f"{source}: its error and its worker.log", pieces, look)


def _explained(source: str, pieces: Iterable[bytes], here: Look) -> Diagnosis:
    """The causes told by a text, with where it is from."""
    is_empty = True

    def noted() -> Iterator[bytes]:
        nonlocal is_empty
        for piece in pieces:
            is_empty = is_empty and not piece.strip()
            yield piece

    found = explain_text(noted(), here)
    return msgspec.structs.replace(found, source=source, is_empty=is_empty)


def _last_failed() -> Run | None:
    """What has failed last: a run, or a start of which no run is left."""
    runs = [run for run in list_runs() if isinstance(run, Run) and run.status == "failed"]
    failed = [*runs[-1:], *filter(None, [last_failed_start()])]
    return max(failed, key=lambda run: run.header.created_at, default=None)


def _told(findings: Iterable[Finding]) -> Iterator[bytes]:
    for one in findings:
        lines = [one.problem, one.because or "", *map(str, one.evidence)]
        yield ("\n".join(lines) + "\n").encode(errors="replace")
