"""An operation on a Windows drive under /mnt failed.

**Checks.** Permission and input/output errors for files under `/mnt/c` and similar. On the machine:
the project or data folder on such a drive that is read-only.

**Why it matters.** WSL mounts Windows drives through 9p. Without the option `metadata` they have no
Linux permissions, and the share can disconnect; small files are also read tens of times slower than
on WSL's own disk.

**Example.** `chmod: changing permissions of '/mnt/d/bar': Operation not permitted`

**Fix.** Keep code, environments and data on WSL's own disk; or mount with `metadata`; by hand.

**Source.** MicrosoftDocs/WSL: wsl-config.md, file-permissions.md; microsoft/WSL#81, #4197.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry


def check(case: Case) -> Finding | None:
    """An error names a path under /mnt/<drive>, or directly follows one."""
    is_near = case.sees("input-output-error") and case.sees("windows-drive-mounted")
    if not case.sees("mnt-drive-error") and not is_near:
        return None
    return Finding(
        rule="wsl-mnt-drive-problem",
        severity="error",
        certainty="decided" if case.sees("mnt-drive-error") else "likely",
        problem="An operation on a Windows drive under /mnt failed.",
        because=(
                "Windows drives are 9p shares: they have no Linux permissions without "
                "`metadata`, and can disconnect"
            ),
        evidence=case.evidence("mnt-drive-error", "input-output-error"),
        fixes=(
            Fix(text="keep code, environments and data on WSL's own disk, under your home folder",
                where="wsl"),
            Fix(
                text=(
                        "or mount the drives with metadata: options = \"metadata\" under "
                        "[automount] in /etc/wsl.conf"
                    ),
                safety="ask",
                edits=(_with_metadata(case.machine),),
                commands=("sudo nano /etc/wsl.conf", "wsl.exe --shutdown"),
                where="wsl",
                changes="stops every distro and container",
                undo="remove the line, and run wsl --shutdown again",
            ),
        ),
        confirm=("mount | grep /mnt/", "ls -ld /mnt/c"),
    )  # fmt: skip


def _with_metadata(machine: Machine) -> Edit:
    """The drives' current options plus `metadata`."""
    settings = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    named = [one for one in settings.get("automount.options", "").split(",") if one]
    options = ",".join(dict.fromkeys(["metadata", *named]))
    entry = Entry(place=("automount", "options"), value=f'"{options}"')
    return Edit(file="/etc/wsl.conf", form="ini", entries=(entry,))


def _in_facts(machine: Machine) -> Facts:
    """The project or data folder is on a read-only drive."""
    return tuple(
        one
        for disk in machine.disks or ()
        if disk.is_windows_drive and disk.is_read_only and disk.role in ("project", "data")
        for one in fact(f"{disk.role} is on a read-only Windows drive", "/proc/self/mountinfo")
    )


RULE = Rule(
    check=check,
    fact_checks=(FactCheck(sign="mnt-drive-error", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "mnt-drive-error",
            "/mnt/",
            pattern=r"/mnt/[a-z]\b[^\n]{0,200}(?:Operation not permitted|Permission denied|No such "
            r"device|Input/output error|Stale file handle|Cannot allocate memory|Protocol error|"
            r"Transport endpoint)|(?:Errno 5|Errno 1|Errno 13|PermissionError|rename failed|chmod)"
            r"[^\n]{0,120}(?:not permitted|denied|/output error)[^\n]{0,60}/mnt/[a-z]/",
        ),
        signature("input-output-error", "Input/output error"),
    ),
)
