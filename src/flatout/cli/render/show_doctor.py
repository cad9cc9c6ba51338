"""Output of the doctor: a machine with its problems, and the causes found in a text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flatout.cli.render.machine_rows import machine_rows
from flatout.cli.render.show import make_console, print_note
from flatout.cli.render.show_docs import print_markdown
from flatout.doctor.model.diagnosis import Diagnosis, Examined
from flatout.doctor.model.fix_plan import repairs
from flatout.schema.finding import Finding, Fix
from flatout.schema.plan import edit_text
from flatout.schema.plan_rows import PLACES, SAFETY
from flatout.schema.site_policy import Site
from flatout.schema.units import counted_text

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
_MARKS = {"error": "x", "warning": "!", "note": "-"}
_STATE_STYLES = {"ok": "green", "busy": "yellow", "": ""}
_INDENT = "    "
_LABEL_WIDTH = 11
_ROW_WIDTH = 12
# Two spaces, and the longest state.
_MARK_WIDTH = 6
_WIDTH = 80


def print_explanation(diagnosis: Diagnosis) -> None:
    """The causes in a text, most likely first, then what would decide."""
    console = make_console()
    for warning in diagnosis.warnings:
        print_note(f"warning: {warning}")
    source = diagnosis.source or "this text"
    if diagnosis.is_empty:
        console.print(f"{source} is empty: there is nothing to explain.", soft_wrap=True)
        return
    if diagnosis.findings and source.startswith("the "):
        console.print(f"Read: {source}", soft_wrap=True)
    if not diagnosis.findings:
        console.print(f"No known cause found in {source}.", soft_wrap=True)
        console.print("To decide, run flatout doctor on the machine it comes from.")
        return
    _print_ranked(console, diagnosis.findings)
    for undecided in diagnosis.undecided:
        console.print(Text("To decide, run:", "bold"))
        for command in undecided.run:
            console.print(f"{_INDENT}{command}", soft_wrap=True)


def print_causes(findings: Sequence[Finding]) -> None:
    """The causes of an error that was printed just now, below it; nothing where none is known."""
    if findings:
        console = make_console(is_error=True)
        console.print()
        _print_ranked(console, findings)


def _print_ranked(console: Console, findings: Sequence[Finding]) -> None:
    shown: set[tuple[str, str]] = set()
    for number, finding in enumerate(findings):
        first = "Most likely: " if number == 0 else "Less likely: "
        if number == 0 and finding.certainty == "decided":
            first = "Cause: "
        console.print(Text.assemble((first, _STYLES[finding.severity]), finding.problem))
        _print_body(console, finding, shown)


def print_examined(examined: Examined, *, is_verbose: bool, is_mending: bool = False) -> None:
    """The machine by its parts, what is wrong with it, and one line that sums up.

    is_mending: how to fix it is shown elsewhere.
    """
    console = make_console()
    for warning in examined.warnings:
        print_note(f"warning: {warning}")
    _print_rows(console, examined)
    for finding in examined.diagnosis.findings:
        mark = (f"\n{_MARKS[finding.severity]} ", _STYLES[finding.severity])
        console.print(Text.assemble(mark, finding.problem))
        _print_body(console, finding)
    for undecided in examined.diagnosis.undecided:
        console.print(Text("\nto decide, run", "bold"))
        for command in undecided.run:
            console.print(f"{_INDENT}{command}", soft_wrap=True)
    if is_verbose and examined.machine.unread:
        console.print(Text("\nnot read", "bold"))
        _print_unread(console, examined.machine.unread)
    is_known = all(row.is_known for row in machine_rows(examined.machine))
    console.print(f"\n{summary(examined.diagnosis.findings, is_all_known=is_known)}")
    if repairs(examined.diagnosis.findings) and not is_mending:
        console.print("To fix, with a plan first: flatout doctor --fix")


def print_site(site: Site) -> None:
    """The settings for all users of this machine, and their file."""
    if site.file is None:
        return
    console = make_console()
    console.print(Text(f"\nset in {site.file}", "bold"), soft_wrap=True)
    for line in site.settings:
        console.print(f"{_INDENT}{line}", soft_wrap=True)


def print_page(rule: str, page: str) -> None:
    """A rule's page."""
    console = make_console()
    console.print(Text(f"{rule}\n", "bold"))
    print_markdown(console, page)


def summary(findings: Sequence[Finding], *, is_all_known: bool = True) -> str:
    """ "1 error, 2 warnings." or that nothing is wrong, in what was read."""
    counts = []
    for severity in ("error", "warning", "note"):
        number = sum(finding.severity == severity for finding in findings)
        if number:
            counts.append(counted_text(number, severity))
    if counts:
        return f"{', '.join(counts)}."
    if not is_all_known:
        return "No problems found, but not everything could be read."
    return "No known problems found."


def print_recording(text: str, *, is_beside: bool) -> None:
    """A recording as it is about to be written. is_beside: stdout is used for something else."""
    console = make_console(is_error=is_beside)
    console.print(text.rstrip(), soft_wrap=True)


def _print_rows(console: Console, examined: Examined) -> None:
    worst = _worst(examined)
    for row in machine_rows(examined.machine, examined.other_cpus):
        severity = next(
            (style for style in _STYLES if style in {worst.get(f) for f in row.families}), ""
        )
        well = (row.state, _STATE_STYLES[row.state]) if row.is_known else ("?", "")
        mark = (_MARKS[severity], _STYLES[severity]) if severity else well
        room = _WIDTH - _ROW_WIDTH - _MARK_WIDTH
        for number, part in enumerate(textwrap.wrap(row.text, room, break_on_hyphens=False)):
            label = (f"{row.label if number == 0 else '':<{_ROW_WIDTH}}", "bold")
            line = Text.assemble(label, part)
            if number == 0:
                line = Text.assemble(label, f"{part:<{room}}  ", mark)
                line.rstrip()
            console.print(line, soft_wrap=True)


def _print_unread(console: Console, unread: dict[str, str]) -> None:
    """Facts and why they are unknown; a shared reason is shown once."""
    facts: dict[str, list[str]] = {}
    for fact, reason in unread.items():
        facts.setdefault(reason, []).append(fact)
    for reason, names in facts.items():
        for line in textwrap.wrap(", ".join(names), _WIDTH, break_on_hyphens=False):
            console.print(Text(line, "bold"), soft_wrap=True)
        for line in textwrap.wrap(reason, _WIDTH - len(_INDENT), break_on_hyphens=False):
            console.print(f"{_INDENT}{line}", soft_wrap=True)


def _worst(examined: Examined) -> dict[str, str]:
    """The most severe finding of each family that has one."""
    worst: dict[str, str] = {}
    for severity in reversed(_STYLES):
        for finding in examined.diagnosis.findings:
            if finding.severity == severity and severity != "note":
                worst[examined.families.get(finding.rule, "")] = severity
    return worst


def _print_body(
    console: Console, finding: Finding, shown: set[tuple[str, str]] | None = None
) -> None:
    """All of a finding but its problem. shown: evidence of those above, which is not repeated."""
    shown = set() if shown is None else shown
    for evidence in finding.evidence:
        where, text = ("", evidence) if isinstance(evidence, str) else (
            evidence.where or "", evidence.text)  # fmt: skip
        if (where, text) in shown and where:
            text = "as above"
        shown.add((where, text))
        # The place in a text is kept apart from this machine, however long the text is.
        if len(where) >= _LABEL_WIDTH and not where.startswith("line "):
            where, text = "here", f"{text} ({where})"
        _print_labelled(console, where, text)
    if finding.because:
        _print_labelled(console, "because", finding.because)
    for fix in finding.fixes:
        _print_fix(console, fix)
    _print_labelled(console, "see", finding.see)


def _print_fix(console: Console, fix: Fix) -> None:
    _print_labelled(console, "fix", f"{fix.text} ({SAFETY[fix.safety]})")
    for edit in fix.edits:
        _print_labelled(console, "edit", edit_text(edit))
    for number, command in enumerate(fix.commands):
        # On a line of its own and never broken, so that it can be copied.
        system = PLACES[fix.where] if number == 0 else ""
        line = command + (f"    # {system}" if system else "")
        console.print(Text(f"{_INDENT}{'':<{_LABEL_WIDTH}}{line}"), soft_wrap=True)
    for label, text in (("changes", fix.changes), ("undo", fix.undo)):
        if text:
            _print_labelled(console, label, text)


def _print_labelled(console: Console, label: str, text: str) -> None:
    """A text behind its label; on a terminal long ones continue below their beginning."""
    width = max(_LABEL_WIDTH, len(label) + 2)
    parts = [text]
    if console.file.isatty():
        room = max(20, console.width - len(_INDENT) - width)
        parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]
    for part in parts:
        console.print(Text(f"{_INDENT}{label:<{width}}{part}"), soft_wrap=True)
        label, width = "", _LABEL_WIDTH
