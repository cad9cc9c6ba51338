"""A Windows program runs inside WSL instead of the Linux one.

**Checks.** Windows paths of Python, pip, conda or nvcc in a WSL shell. On the machine: which of
these names a shell finds first on a Windows drive.

**Why it matters.** WSL appends Windows' PATH to its own: a program missing in Linux is found in
Windows, where it installs packages and does not see Linux files.

**Example.** `/mnt/c/Users/me/AppData/Local/Programs/Python/Python312/python.exe`

**Fix.** Install Python in Linux; or `appendWindowsPath=false` under [interop] in /etc/wsl.conf;
asks first.

**Source.** MicrosoftDocs/WSL: wsl-config.md (interop settings).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry

_OWN_PATH = Edit(
    file="/etc/wsl.conf",
    form="ini",
    entries=(Entry(place=("interop", "appendWindowsPath"), value="false"),),
)


def check(case: Case) -> Finding | None:
    """Windows paths of Python, pip, conda or nvcc in a WSL shell."""
    if not case.sees("windows-program-in-wsl"):
        return None
    return Finding(
        rule="windows-python-inside-wsl",
        severity="warning",
        certainty="likely",
        problem="A Windows program runs inside WSL instead of the Linux one.",
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
                text=(
                    "or exclude Windows' PATH: `appendWindowsPath=false` under [interop] in"
                    " /etc/wsl.conf, then `wsl --shutdown`"
                ),
                safety="ask",
                edits=(_OWN_PATH,),
                commands=("sudo nano /etc/wsl.conf", "wsl.exe --shutdown"),
                where="wsl",
                changes="stops every distro and container",
                undo="remove the line",
            ),
        ),
        confirm=("type -a python python3 pip nvcc",),
    )


def _in_facts(machine: Machine) -> Facts:
    """A name resolves to a Windows drive."""
    programs = {"python", "python3", "pip", "pip3", "conda", "uv", "nvcc"}
    found = [one for one in (machine.wsl.windows_programs if machine.wsl else None) or ()
             if one in programs]  # fmt: skip
    return fact(f"on a Windows drive: {', '.join(found)}", "PATH") if found else ()


RULE = Rule(
    check=check,
    prior=50,
    fact_checks=(FactCheck(sign="windows-program-in-wsl", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "windows-program-in-wsl",
            "/mnt/c/",
            "/mnt/d/",
            pattern=r"/mnt/[a-z]/[^\n:]{1,160}/(?:python3?|pip3?|conda|nvcc)(?:\.exe)\b",
        ),
    ),
)
