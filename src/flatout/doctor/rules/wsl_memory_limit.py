"""WSL's virtual machine has too little memory, or its .wslconfig is not applied.

**Checks.** `.wslconfig` and the output of `free`, WSL's errors about that file, and processes
killed for memory under WSL. On the machine: `memory=` in .wslconfig against the memory of WSL and
Windows.

**Why it matters.** WSL gets half of the machine's memory. A `.wslconfig` with a mistake, in UTF-16,
or changed without `wsl --shutdown` is silently ignored.

**Example.** `memory=6GB` in `.wslconfig` and `Mem: 25Gi` from `free`

**Fix.** Set `memory=` in `%UserProfile%\\.wslconfig`, saved as UTF-8, then `wsl --shutdown`; asks
first.

**Source.** MicrosoftDocs/WSL: wsl-config.md.
"""

from __future__ import annotations

import re

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import WSLCONFIG, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry
from flatout.schema.units import bytes_text

# Memory reserved for Windows itself.
_WINDOWS_BYTES = 8 * 1024**3
_GIB = 1024**3
_TROUBLE = ("wslconfig-refused", "wsl-start-out-of-memory")


# Also matches an `echo` of the line into the file.
_SET = r"(?:^|\[wsl2\])\s*memory\s*=\s*\d+\s*(?:[GM]B?)?\s*(?:$|[\"'])"


def check(case: Case) -> Finding | None:
    """The file is rejected or has no effect, or WSL ran out of memory."""
    is_set = case.sees("wslconfig-memory") and case.sees("free-table", "wslconfig-named")
    is_killed = case.is_wsl and case.sees("kernel-killed-process")
    if not case.sees(*_TROUBLE) and not is_set and not is_killed:
        return None
    return Finding(
        rule="wsl-memory-limit",
        severity="error" if case.sees(*_TROUBLE) or is_killed else "warning",
        certainty="decided" if case.sees(*_TROUBLE) else "likely",
        problem="WSL's memory limit is too small, or .wslconfig is not applied.",
        because="WSL reads .wslconfig only at startup, as UTF-8, and skips unknown entries",
        evidence=case.evidence(
            *_TROUBLE, "wslconfig-memory", "free-table", "kernel-killed-process"
        ),
        fixes=(
            Fix(
                text="set `memory=` under [wsl2] in .wslconfig, saved as UTF-8, and restart WSL",
                safety="ask",
                edits=_edits(case.machine),
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
                undo="restore the old value, and run wsl --shutdown again",
            ),
        ),
        confirm=("free -m", "powershell.exe -c 'Get-Content $env:USERPROFILE\\.wslconfig'"),
    )


def _edits(machine: Machine) -> tuple[Edit, ...]:
    """All memory except what Windows needs, if that is more than WSL's default."""
    total_bytes = machine.windows.memory_bytes if machine.windows else None
    if total_bytes is None or total_bytes <= 2 * _WINDOWS_BYTES:
        return ()
    memory = f"{(total_bytes - _WINDOWS_BYTES) // _GIB}GB"
    entry = Entry(place=("wsl2", "memory"), value=memory)
    return (Edit(file=WSLCONFIG, form="ini", entries=(entry,), encoding="utf-8"),)


def _not_applied(machine: Machine) -> Facts:
    """WSL has a different amount than the file sets."""
    asked, total = _asked_bytes(machine), machine.memory.total_bytes
    # The kernel keeps some of it for itself.
    if asked is None or total is None or 0.8 * asked < total < 1.05 * asked:
        return ()
    return (
        *fact(f"memory={bytes_text(asked)}", ".wslconfig"),
        *fact(f"WSL has {bytes_text(total)}", "/proc/meminfo"),
    )


def _is_low(machine: Machine) -> Facts:
    """The file sets less than half of WSL's default, and less than 8 GB."""
    asked = _asked_bytes(machine)
    whole = machine.windows.memory_bytes if machine.windows else None
    if asked is None or whole is None or asked >= min(8 * 10**9, whole / 4):
        return ()
    return (
        *fact(f"memory={bytes_text(asked)}", ".wslconfig"),
        *fact(f"Windows has {bytes_text(whole)}", "CIM"),
    )


def _asked_bytes(machine: Machine) -> int | None:
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    return _bytes(config.get("wsl2.memory", "")) if machine.host.wsl == 2 else None


def _bytes(text: str) -> int | None:
    """ "12GB" as WSL reads it: in powers of 1024."""
    found = re.fullmatch(r"(\d{1,12}) ?([KMGT]?)B?", text.strip(), re.IGNORECASE)
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ") if found else None


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="wslconfig-refused", read=_not_applied, severity="warning"),
        FactCheck(sign="wslconfig-refused", read=_is_low, severity="warning"),
    ),
    signatures=(
        signature("wslconfig-named", ".wslconfig"),
        signature("wslconfig-memory", "memory", pattern=_SET),
        signature("free-table", "Mem:", pattern=r"^Mem:\s+\d"),
        signature(
            "wslconfig-refused",
            ".wslconfig",
            pattern=r"(?:unknown|invalid|unrecognized|expected|duplicate)[^\n]{0,120}\.wslconfig",
        ),
        signature(
            "wsl-start-out-of-memory",
            "0x800705aa",
            "0x8007000e",
            "CreateVm",
            pattern=r"(?:Wsl/|CreateVm|HCS)\S{0,80}.{0,20}(?:0x800705aa|0x8007000e|E_OUTOFMEMORY)",
        ),
    ),
)
