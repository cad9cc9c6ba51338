"""What the doctor shows: a machine with what is wrong, and the causes in a text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flatout.cli.show import make_console, print_lines
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.units import bytes_text

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
_MARKS = {"error": "x", "warning": "!", "note": "-"}
_SAFETY = {"safe": "safe", "ask": "asks first", "manual": "by hand"}
_PLACES = {
    "here": "", "wsl": "in WSL", "linux": "in Linux", "powershell": "in PowerShell",
    "host": "on the host", "container": "in the container",
}  # fmt: skip
_INDENT = "    "
_LABEL_WIDTH = 11


def print_explanation(diagnosis: Diagnosis) -> None:
    """The causes in a text, most likely first, then what would decide."""
    console = make_console()
    if not diagnosis.findings:
        console.print("No cause that is known here was seen in this text.")
        console.print("To decide: flatout doctor, on the machine that it comes from")
        return
    for number, finding in enumerate(diagnosis.findings):
        first = "Most likely: " if number == 0 else "Less likely: "
        if number == 0 and finding.certainty == "decided":
            first = "Cause: "
        console.print(Text.assemble((first, _STYLES[finding.severity]), finding.problem))
        _print_body(console, finding)
    for question in diagnosis.undecided:
        console.print(Text("To decide, run:", "bold"))
        for command in question.run:
            console.print(f"{_INDENT}{command}", soft_wrap=True)


def print_examined(machine: Machine, diagnosis: Diagnosis, *, is_verbose: bool) -> None:
    """The machine in a few lines, what is wrong with it, and one line that sums up."""
    console = make_console()
    print_lines(console, machine_rows(machine))
    for finding in diagnosis.findings:
        mark = (f"\n{_MARKS[finding.severity]} ", _STYLES[finding.severity])
        console.print(Text.assemble(mark, finding.problem))
        _print_body(console, finding)
    if is_verbose and machine.unread:
        console.print(Text("\nnot read", "bold"))
        print_lines(console, list(machine.unread.items()))
    console.print(f"\n{summary(diagnosis.findings)}")


def print_page(rule: str, page: str) -> None:
    """A rule's page."""
    make_console().print(f"{rule}\n\n{page.strip()}", soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """ "1 error, 2 warnings." or that nothing is wrong."""
    counts = []
    for severity in ("error", "warning", "note"):
        number = sum(one.severity == severity for one in findings)
        if number:
            counts.append(f"{number} {severity}{'s' if number > 1 else ''}")
    return f"{', '.join(counts)}." if counts else "Nothing is wrong that is known here."


def machine_rows(machine: Machine) -> list[tuple[str, str]]:
    """What the doctor tells of a healthy machine, one line a part."""
    host = machine.host
    system = " · ".join(part for part in (host.distribution or host.os, host.release) if part)
    rows = [("system", f"{system}{f' · WSL {host.wsl}' if host.wsl else ''}")]
    if host.container:
        rows.append(("container", host.container))
    memory = machine.memory.limit_bytes or machine.memory.total_bytes
    cpu = machine.cpu.name or "CPU"
    rows.append(("cpu", f"{cpu} · {bytes_text(memory)} of memory" if memory else cpu))
    for gpu in machine.gpus:
        parts = [gpu.name or "GPU", bytes_text(gpu.memory_bytes) if gpu.memory_bytes else ""]
        capability = gpu.compute_capability and f"compute capability {gpu.compute_capability}"
        rows.append(("gpu", " · ".join(part for part in (*parts, capability) if part)))
    if not machine.gpus:
        rows.append(("gpu", machine.unread.get("gpus", "none")))
    if machine.driver:
        cuda = f" · CUDA up to {machine.cuda}" if machine.cuda else ""
        rows.append(("driver", f"{machine.driver}{cuda}"))
    for one in machine.frameworks:
        build = f" {one.build}" if one.build and one.build not in one.version else ""
        rows.append((one.name, f"{one.version}{build}"))
    return rows


def _print_body(console: Console, finding: Finding) -> None:
    for evidence in finding.evidence:
        where, text = ("", evidence) if isinstance(evidence, str) else (
            evidence.where or "", evidence.text)  # fmt: skip
        _print_labelled(console, where, text)
    if finding.because:
        _print_labelled(console, "because", finding.because)
    for fix in finding.fixes:
        _print_fix(console, fix)
    _print_labelled(console, "see", finding.see or finding.rule)


def _print_fix(console: Console, fix: Fix) -> None:
    _print_labelled(console, "fix", f"{fix.text} ({_SAFETY[fix.safety]})")
    for number, command in enumerate(fix.commands):
        # On a line of its own and never broken, so that it can be copied.
        place = _PLACES[fix.where] if number == 0 else ""
        _print_labelled(console, "", command + (f"    # {place}" if place else ""))
    for label, text in (("changes", fix.changes), ("undo", fix.undo)):
        if text:
            _print_labelled(console, label, text)


def _print_labelled(console: Console, label: str, text: str) -> None:
    console.print(Text(f"{_INDENT}{label:<{_LABEL_WIDTH}}{text}"), soft_wrap=True)
