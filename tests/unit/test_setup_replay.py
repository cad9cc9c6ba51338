"""What setup.ps1 decides about WSL, replayed against a Windows that answers as the real one does.

PowerShell cannot be had from PyPI, npm or Debian, so the part of the script that decides is carried
over into Python, line by line from its own text; a line that is not known here fails the test.

How the real programs answer: microsoft/WSL @3e27a6a, src/windows/common/WslClient.cpp (Install:
with a restart pending no distribution is installed, and 0 is returned; Status: always 0) and
WslInstall.cpp (dism's 3010 counts as well); wslutil.cpp, IsVirtualMachinePlatformInstalled.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flatout.compat.tables import shipped_tables
from flatout.setup.host.windows_script import script_text
from flatout.setup.host.wsl import DISTRO, plan_wsl


class Ended(Exception):
    """The script has ended. args: its exit code."""


@dataclass
class Windows:
    """A Windows and its wsl.exe; `is_on` is the platform, which comes up with the next start."""

    has_wsl: bool = False
    is_on: bool = False
    is_refused: bool = False
    never_comes_up: bool = False
    distros: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    goes_on: bool = False

    def wsl(self, *words: str) -> int:
        self.asked.append(" ".join(words))
        if not self.has_wsl and words[0] != "--install":
            raise AssertionError(f"wsl.exe {words[0]} waits a minute for a key: WSL is missing")
        if words[0] == "--install":
            self.has_wsl = True
            if "--no-distribution" not in words and self.is_on:
                self.distros.append(words[-1])
        return 0

    def elevated(self, *words: str) -> int:
        return 1 if self.is_refused else self.wsl(*words)

    def restart(self) -> None:
        self.is_on = self.has_wsl and not self.never_comes_up
        self.goes_on = False


def python_of(part: str) -> str:
    """A part of setup.ps1 as Python. Only what it uses is known."""
    lines, depth = [], 0
    part = re.sub(r"\{ ([^{}]+) \}", lambda found: "{\n" + found[1] + "\n}", part)
    for line in part.splitlines():
        text = line.strip()
        if text == "}":
            depth -= 1
            continue
        pieces = re.findall(r"""(?:'[^']*'|"[^"]*"|[^;'"])+""", text)
        for one in filter(None, (piece.strip() for piece in pieces)):
            if one.startswith(("#", "Write-Host")):
                lines.append("    " * depth + "pass")
            else:
                lines.append("    " * depth + _statement(one))
        if text.endswith("{"):
            depth += 1
    return "\n".join(lines)


def _statement(text: str) -> str:
    if found := re.fullmatch(r"if \((.*)\) \{", text):
        return f"if {_condition(found[1])}:"
    if found := re.fullmatch(r"\$code = Start-Elevated 'wsl\.exe' @\((.*)\)", text):
        return f"code = windows.elevated({found[1]})"
    if found := re.fullmatch(r"& wsl\.exe (.*)", text):
        return f"windows.wsl(*{found[1].split()!r})"
    if found := re.fullmatch(r"exit (\d+)", text):
        return f"raise Ended({found[1]})"
    if text == "Exit-ForRestart":
        return "exit_for_restart()"
    raise AssertionError(f"not known here: {text}")


def _condition(text: str) -> str:
    text = re.sub(r"Ask '[^']*'", "True", text)
    for shell, python in (("-not", "not"), ("-and", "and"), ("-ne", "!="), ("$code", "code"),
                          ("Test-Wsl", "windows.has_wsl"), ("Test-Platform", "windows.is_on"),
                          ("Test-Distribution", "has_distro()")):  # fmt: skip
        text = text.replace(shell, python)
    return text


@pytest.fixture(scope="module")
def decisions() -> str:
    """The part of setup.ps1 from WSL to its distro, as Python."""
    path = Path(__file__).with_name("setup_plans.py")
    spec = importlib.util.spec_from_file_location("setup_plans", path)
    assert spec and spec.loader
    plans = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plans)
    wanted = plan_wsl(plans.machine_of(plans.WINDOWS), shipped_tables())
    script = script_text(wanted).replace("\r\n", "\n")
    begin = re.search(r"^Write-Host '\d+\. WSL'$", script, re.MULTILINE)
    end = re.search(r"^Write-Host '\d+\. (?:\.wslconfig|flatout inside WSL)'$", script,
                    re.MULTILINE)  # fmt: skip
    assert begin and end
    return python_of(script[begin.start() : end.start()])


def run(decisions: str, windows: Windows, *, is_resumed: bool = False) -> int | None:
    """The exit code with which the part ends; None where the script goes on behind it."""

    def exit_for_restart() -> None:
        if is_resumed:
            raise Ended(1)
        windows.goes_on = True
        raise Ended(0)

    names: dict[str, Any] = {
        "windows": windows, "Ended": Ended, "exit_for_restart": exit_for_restart,
        "has_distro": lambda: windows.wsl("--list", "--quiet") == 0 and DISTRO in windows.distros,
    }  # fmt: skip
    try:
        exec(decisions, names)
    except Ended as ended:
        return int(ended.args[0])
    return None


def test_a_windows_without_wsl_is_set_up_over_one_restart(decisions: str) -> None:
    windows = Windows()
    assert run(decisions, windows) == 0 and windows.goes_on
    # Nothing was tried that a pending restart keeps from being done.
    assert windows.asked == ["--install --no-distribution"]
    windows.restart()
    assert run(decisions, windows, is_resumed=True) is None
    assert windows.distros == [DISTRO]


def test_a_second_run_before_the_restart_asks_for_it_again(decisions: str) -> None:
    windows = Windows(has_wsl=True)
    assert run(decisions, windows) == 0 and windows.goes_on and windows.distros == []


def test_a_platform_that_never_comes_up_does_not_restart_for_ever(decisions: str) -> None:
    windows = Windows(never_comes_up=True)
    assert run(decisions, windows) == 0
    windows.restart()
    assert run(decisions, windows, is_resumed=True) == 1 and not windows.goes_on


def test_without_an_administrator_nothing_goes_on(decisions: str) -> None:
    windows = Windows(is_refused=True)
    assert run(decisions, windows) == 1 and windows.asked == []


def test_what_is_there_is_passed_over(decisions: str) -> None:
    windows = Windows(has_wsl=True, is_on=True, distros=[DISTRO])
    assert run(decisions, windows) is None
    assert not [one for one in windows.asked if one.startswith("--install")]
