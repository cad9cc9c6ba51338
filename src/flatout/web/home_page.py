"""Home: this machine, its health, what is running, and the last results."""

from __future__ import annotations

from typing import Any

from flatout.schema.finding import Finding
from flatout.schema.machine import Machine
from flatout.web.page import PageRequest, WebPage, section
from flatout.web.run_row import run_row

_NUM_LAST = 10
_NUM_FINDINGS = 8
# Of the runs, so many are looked through for those that are running.
_NUM_LOOKED_AT = 2000
_SEVERITIES = ("error", "warning", "note")


def home_page(request: PageRequest) -> WebPage:
    """The first page."""
    health = request.context.health.latest()
    examined = health.value
    findings = examined.diagnosis.findings if examined is not None else ()
    runs = section(lambda: _runs(request))
    return WebPage(
        template="home",
        data={
            "machine": _machine(examined.machine) if examined is not None else None,
            "examined_at": health.at,
            "examination_problem": health.problem,
            "counts": {name: _number_of(name, findings) for name in _SEVERITIES},
            "findings": findings[:_NUM_FINDINGS],
            "num_more_findings": max(0, len(findings) - _NUM_FINDINGS),
            "runs": runs,
        },
    )


def _number_of(severity: str, findings: tuple[Finding, ...]) -> int:
    return sum(finding.severity == severity for finding in findings)


def _runs(request: PageRequest) -> dict[str, Any]:
    cache = request.context.runs
    paths = cache.paths()
    newest = paths[: -_NUM_LOOKED_AT - 1 : -1]
    running = cache.running(newest)
    ended = [path for path in newest if path not in running][:_NUM_LAST]
    known = cache.rows(path for path in newest if path in running)
    last = cache.rows(ended)
    return {
        "num_runs": len(paths),
        "num_unread": known.num_unread + last.num_unread,
        "running": [run_row(row) for row in known.rows],
        "last": [run_row(row) for row in last.rows],
    }


def _machine(machine: Machine) -> dict[str, Any]:
    """The facts that are shown, each None where it is unknown."""
    memory = machine.memory
    torch = machine.framework("torch")
    return {
        "os": machine.host.os,
        "distribution": machine.host.distribution,
        "release": machine.host.release,
        "wsl": machine.host.wsl,
        "container": machine.host.container,
        "cpu": machine.cpu,
        "memory_bytes": memory.limit_bytes or memory.total_bytes,
        "memory_free_bytes": memory.available_bytes,
        "gpus": machine.gpus,
        "why_no_gpus": machine.unread.get("gpus"),
        "driver": machine.driver,
        "cuda": machine.cuda,
        "torch": torch.version if torch is not None else None,
        "disks": [disk for disk in machine.disks or () if disk.total_bytes],
    }
