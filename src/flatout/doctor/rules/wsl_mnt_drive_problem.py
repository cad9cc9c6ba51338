"""A Windows drive below /mnt refuses what is asked of it.

**Checks.** Permission and input/output errors for files below `/mnt/c` and its like. On the
machine: a folder of the project or the data on such a drive that is read-only.

**Why it matters.** Windows drives reach WSL through 9p. Without the option `metadata` they have
no Linux permissions, and the share may break off; besides, small files are read tens of times
slower than on WSL's own disk.

**Example.** `chmod: changing permissions of '/mnt/d/bar': Operation not permitted`

**Fix.** Keep code, environments and data on WSL's own disk; else mount with `metadata`; by hand.

**Source.** MicrosoftDocs/WSL: wsl-config.md, file-permissions.md; microsoft/WSL#81, #4197.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry


def check(case: Case) -> Finding | None:
    """An error names a path below /mnt/<drive>, or comes right after one."""
    is_near = case.sees("input-output-error") and case.sees("windows-drive-mounted")
    if not case.sees("mnt-drive-error") and not is_near:
        return None
    return Finding(
        rule="wsl-mnt-drive-problem",
        severity="error",
        certainty="decided" if case.sees("mnt-drive-error") else "likely",
        problem="A Windows drive below /mnt refuses what is asked of it.",
        because="drives of Windows are shares (9p): no Linux permissions without `metadata`, and "
        "the share can break off",
        evidence=case.evidence("mnt-drive-error", "input-output-error"),
        fixes=(
            Fix(text="keep code, environments and data on WSL's own disk, below your home",
                where="wsl"),
            Fix(
                text="mount the drives with metadata: options = \"metadata\" under [automount] in "
                "/etc/wsl.conf",
                safety="ask",
                edits=(_with_metadata(case.machine),),
                commands=("sudo nano /etc/wsl.conf", "wsl.exe --shutdown"),
                where="wsl",
                changes="stops every distro and container",
                undo="take the line out, and wsl --shutdown again",
            ),
        ),
        confirm=("mount | grep /mnt/", "ls -ld /mnt/c"),
    )  # fmt: skip


def _with_metadata(machine: Machine) -> Edit:
    """The drives' options as they are, and `metadata` among them."""
    settings = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    named = [one for one in settings.get("automount.options", "").split(",") if one]
    options = ",".join(dict.fromkeys(["metadata", *named]))
    entry = Entry(place=("automount", "options"), value=f'"{options}"')
    return Edit(file="/etc/wsl.conf", form="ini", entries=(entry,))


def _in_facts(machine: Machine) -> Facts:
    """A folder that matters lies on a drive that takes nothing."""
    return tuple(
        one
        for disk in machine.disks or ()
        if disk.is_windows_drive and disk.is_read_only and disk.role in ("project", "data")
        for one in fact(
            f"{disk.role} lies on a Windows drive that is read-only", "/proc/self/mountinfo"
        )
    )


RULE = Rule(
    check=check,
    readings=(Reading(sign="mnt-drive-error", read=_in_facts, severity="warning"),),
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
