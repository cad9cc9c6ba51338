"""A plan for WSL as a PowerShell script, as single commands, and as a request to an administrator.

The script is written for PowerShell 5.1, which every Windows has, and can be run again at any
point: each part first checks whether it is already done.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from shlex import join

from flatout.schema.plan import Edit, PlanStep, RunProgram
from flatout.schema.shell_quoting import powershell_line, powershell_text, powershell_word
from flatout.setup.host.wsl import VIRTUALIZATION, WslPlan

RUN_LINE = "powershell -ExecutionPolicy Bypass -File {}"
TEMPLATE = Path(__file__).with_name("setup.ps1.tmpl")
_PART = re.compile(r"^# @@IF (\w+)@@\n(.*?)^# @@END@@\n\n", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"\$\{@@(?P<code>\w+)@@\}|@@(?P<text>\w+)@@")


def script_text(wsl_plan: WslPlan) -> str:
    """The plan as a script, in ASCII with Windows line endings.

    setup.ps1.tmpl is PowerShell itself, with three kinds of marks:

    - `@@NAME@@` in a comment or in quotes is replaced by a text; STEP by the next number.
    - `${@@NAME@@}`, a variable to PowerShell's parser, is replaced by code.
    - The lines between `# @@IF NAME@@` and `# @@END@@` are dropped where NAME is false.
    """
    branch = wsl_plan.driver_branch
    # On Windows a branch spans up to ten numbers.
    is_too_new = f" -or $major -ge {branch + 10}" if branch and wsl_plan.is_last_branch else ""
    driver = f"the newest of branch {branch}" if wsl_plan.is_last_branch else f"{branch} or later"
    parts = {"NEEDS_DRIVER": branch is not None, "CHANGES_SETTINGS": bool(wsl_plan.settings)}
    code = {
        "DISTRO": powershell_word(wsl_plan.distro),
        "DRIVER_IS_WRONG": f"$major -lt {wsl_plan.driver_minimum}{is_too_new}",
        "CHANGES": _entries(wsl_plan.settings),
        "SETUP_LINE": powershell_text(join(("flatout", "setup", *wsl_plan.frameworks))),
    }
    texts = {
        "GOAL": wsl_plan.plan.goal,
        "DISTRO": wsl_plan.distro,
        "DRIVER": driver,
        # Used in single quotes.
        "FRAMEWORKS": powershell_text(" ".join(wsl_plan.frameworks))[1:-1],
    }
    steps = count(1)

    def filled(mark: re.Match[str]) -> str:
        if mark["code"]:
            return code[mark["code"]]
        return str(next(steps)) if mark["text"] == "STEP" else texts[mark["text"]]

    text = TEMPLATE.read_text(encoding="utf-8")
    text = _PART.sub(lambda part: f"{part[2]}\n" if parts[part[1]] else "", text)
    return _MARK.sub(filled, text).replace("\n", "\r\n")


def _entries(settings: dict[str, str | None]) -> str:
    lines = []
    for name, value in settings.items():
        section, _, key = name.partition(".")
        text = "$null" if value is None else f"'{value}'"
        lines.append(f"$after = Set-Entry $after '{section}' '{key}' {text}")
    return "\n".join(lines)


def commands(step: PlanStep) -> tuple[str, ...]:
    """The commands to type for a step, where scripts are forbidden; an edit is described."""
    action = step.action
    if isinstance(action, Edit):
        return tuple(
            f"[{entry.place[0]}] {entry.place[1]}={entry.value}"
            if entry.value is not None
            else f"[{entry.place[0]}] remove {entry.place[1]}"
            for entry in action.entries
        )
    if not isinstance(action, RunProgram):
        return ()
    if step.where in ("windows", "powershell"):
        return (powershell_line(action.argv),)
    return (("sudo " if step.needs_root else "") + join(action.argv),)


_REQUEST = """# Request: GPU computing inside WSL on this PC

**Purpose:** {goal}. WSL 2 is a Windows feature, supported by Microsoft; NVIDIA supports CUDA in
it. No firewall port is opened, and no driver is installed inside WSL.

**Steps for an administrator**, once, in PowerShell:

```powershell
{administrator}
```

{driver}Then Windows restarts once. Virtualization (Intel VT-x, AMD-V) must be enabled in the
firmware; to check it (no output means that it is):

```powershell
{check}
```

**Steps for the user**, without administrator rights:

{user}

**Addresses** used over HTTPS: `wsl.msft.com` and `www.microsoft.com` (WSL, the distro),
`archive.ubuntu.com`, `github.com` (uv and Python), PyPI and the host of its files,
`download.pytorch.org`. The system's proxy and company certificates are used.

**Policies** that would block it: "Allow the Windows Subsystem for Linux", "Allow WSL1",
"Allow custom .wslconfig" of the WSL templates for Intune, if set to disabled.

**To undo it:** `wsl --unregister {distro}`, then `wsl --uninstall`.
"""


def request_text(wsl_plan: WslPlan) -> str:
    """A request to an administrator: one page in Markdown."""
    steps = wsl_plan.plan.steps
    administrator = [line for step in steps if _is_for_administrator(step)
                     for line in commands(step)]  # fmt: skip
    own = (step for step in steps if not step.needs_root and step.restarts != "windows")
    user = [f"- {step.text}" for step in own if step.safety != "safe"]
    driver = ""
    if wsl_plan.driver_branch is not None:
        words = "the newest driver of branch" if wsl_plan.is_last_branch else "driver"
        later = "" if wsl_plan.is_last_branch else " or later"
        driver = (
            f"NVIDIA's {words} {wsl_plan.driver_branch}{later} for Windows is required "
            "(https://www.nvidia.com/drivers). "
        )
    return _REQUEST.format(
        goal=wsl_plan.plan.goal,
        administrator="\n".join(administrator),
        driver=driver,
        check=VIRTUALIZATION.replace("exit 1", "'virtualization is off'"),
        user="\n".join(user),
        distro=wsl_plan.distro,
    )


def _is_for_administrator(step: PlanStep) -> bool:
    return step.needs_root and step.safety != "manual"
