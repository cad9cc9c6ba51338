"""Internet host names cannot be resolved inside WSL.

**Checks.** Errors of apt, pip, git or curl that a host cannot be resolved.

**Why it matters.** WSL generates `/etc/resolv.conf` from Windows. A VPN, a firewall or a
hand-written file leaves it pointing to a server that does not answer.

**Example.** `Temporary failure resolving 'archive.ubuntu.com'`

**Fix.** Set `dnsTunneling=true` in `.wslconfig` (Windows 11), and let WSL generate `resolv.conf`;
asks first.

**Source.** MicrosoftDocs/WSL: wsl-config.md, troubleshooting.md; microsoft/WSL#6404.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import WSLCONFIG, Finding, Fix
from flatout.schema.plan import Edit, Entry

_TUNNEL = Edit(
    file=WSLCONFIG,
    form="ini",
    entries=(Entry(place=("wsl2", "dnsTunneling"), value="true"),),
    encoding="utf-8",
)


def check(case: Case) -> Finding | None:
    """A name was not resolved, under WSL or on an unknown machine."""
    if not case.sees("name-not-resolved") or (case.is_here and not case.is_wsl):
        return None
    is_elsewhere = case.machine.host.os == "windows" or case.is_container and not case.is_wsl
    return Finding(
        rule="wsl-dns-broken",
        severity="error",
        certainty="possible" if is_elsewhere else "decided" if case.is_wsl else "likely",
        problem="Host names cannot be resolved.",
        because=(
            "under WSL, the generated /etc/resolv.conf often names a server that does not answer"
        )
        if not case.is_wsl
        else "the server in WSL's /etc/resolv.conf does not answer",
        evidence=case.evidence("name-not-resolved", "resolv-conf-nameserver"),
        fixes=(
            Fix(
                text="let Windows resolve names: `dnsTunneling=true` under [wsl2] in .wslconfig",
                safety="ask",
                edits=(_TUNNEL,),
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
                undo="remove the line, and run wsl --shutdown again",
            ),
        ),
        confirm=("cat /etc/resolv.conf", "getent hosts github.com"),
    )


RULE = Rule(
    check=check,
    signatures=(signature("resolv-conf-nameserver", "nameserver", pattern=r"^nameserver \S+"),),
)
