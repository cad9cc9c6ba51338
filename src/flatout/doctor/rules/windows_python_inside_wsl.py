"""Under WSL, a program of Windows answers in place of Linux'.

**Checks.** Windows' paths of Python, pip, conda or nvcc in a shell of WSL. On the machine: which of
these names a shell finds first on a drive of Windows.

**Why it matters.** WSL puts Windows' PATH behind its own: what is missing in Linux is found in
Windows, installs there, and does not see Linux' files.

**Example.** `/mnt/c/Users/me/AppData/Local/Programs/Python/Python312/python.exe`

**Fix.** Install Python in Linux; or `appendWindowsPath=false` under [interop] in /etc/wsl.conf;
asked first.

**Source.** MicrosoftDocs/WSL: wsl-config.md (interop settings).
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry

_OWN_PATH = Edit(
    file="/etc/wsl.conf",
    form="ini",
    entries=(Entry(place=("interop", "appendWindowsPath"), value="false"),),
)


def check(case: Case) -> Finding | None:
    """Windows' paths of Python, pip, conda or nvcc in a shell of WSL."""
    if not case.sees("windows-program-in-wsl"):
        return None
    return Finding(
        rule="windows-python-inside-wsl",
        severity="warning",
        certainty="likely",
        problem="Under WSL, a program of Windows answers in place of Linux'.",
        because="WSL appends Windows' PATH to its own",
        evidence=case.evidence("windows-program-in-wsl"),
        fixes=(
            Fix(
                text="install Python in Linux",
                safety="ask",
                commands=("sudo apt install python3-venv",),
                where="wsl",
                changes="installs a package",
            ),
            Fix(
                text="or keep Windows' PATH out: `appendWindowsPath=false` under [interop] "
                "in /etc/wsl.conf, then `wsl --shutdown`",
                safety="ask",
                edits=(_OWN_PATH,),
                commands=("sudo nano /etc/wsl.conf", "wsl.exe --shutdown"),
                where="wsl",
                changes="stops every distro and container",
                undo="take the line out again",
            ),
        ),
        confirm=("type -a python python3 pip nvcc",),
    )


def _in_facts(machine: Machine) -> Facts:
    """A name leads to a drive of Windows."""
    programs = {"python", "python3", "pip", "pip3", "conda", "uv", "nvcc"}
    found = [one for one in (machine.wsl.windows_programs if machine.wsl else None) or ()
             if one in programs]  # fmt: skip
    return fact(f"on a drive of Windows: {', '.join(found)}", "PATH") if found else ()


RULE = Rule(
    check=check,
    prior=50,
    readings=(Reading(sign="windows-program-in-wsl", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "windows-program-in-wsl",
            "/mnt/c/",
            "/mnt/d/",
            pattern=r"/mnt/[a-z]/[^\n:]{1,160}/(?:python3?|pip3?|conda|nvcc)(?:\.exe)\b",
        ),
    ),
)
