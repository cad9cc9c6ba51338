"""How install.ps1 gets uv, replayed against a curl and a server that answer as the real ones do.

install.ps1 calls neither winget nor netsh nor dism: what may go wrong on its way to uv is curl.
PowerShell cannot be had from PyPI, npm or Debian, so the two functions are carried over into
Python, line by line from their own text; a line that is not known here fails the test.

How curl ends: everything.curl.dev/cmdline/exitcode.html: 6 no such host, 18 broken off, 22 what
`--fail` makes of HTTP 400 and above, 33 no ranges. A server that is asked to go on behind the end
answers 416, which is 22.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

INSTALL = Path(__file__).resolve().parents[2] / "install.ps1"
WHOLE = "the whole archive"
# What a line of the script is in Python.
LINES = {
    "$isContinued = (Test-Path -LiteralPath $File) -and (Get-Item -LiteralPath $File).Length "
    "-gt 0": "is_continued = bool(disk.archive)",
    "[Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol "
    "-bor [Net.SecurityProtocolType]::Tls12": "pass",
    "$curl = Join-Path $env:SystemRoot 'System32\\curl.exe'": "pass",
    "if (-not (Test-Path -LiteralPath $curl)) {": "if not has_curl:",
    "Invoke-WebRequest -UseBasicParsing -Uri $Url -OutFile $File": "disk.fetch_whole()",
    "return $false": "return False",
    "$code = Invoke-Program $curl @( '-fsSL', '--retry', '3', '--connect-timeout', '20', '-C', "
    "'-', '-o', $File, $Url )": "code = disk.curl()",
    "if ($code -ne 0 -and -not ($isContinued -and @(22, 33) -contains $code)) {":
        "if code != 0 and not (is_continued and code in (22, 33)):",
    'throw "curl ended with $code"': "raise Thrown(code)",
    "return $isContinued": "return is_continued",
    "if ((Get-Sum $archive) -ne $UvSums[$machine]) {": "if disk.archive != WHOLE:",
    "try {": "try:",
    "$isContinued = Receive-File $url $archive": "is_continued = receive_file()",
    "if ($isContinued -and (Get-Sum $archive) -ne $UvSums[$machine]) {":
        "if is_continued and disk.archive != WHOLE:",
    "Remove-Item -Force -LiteralPath $archive": "disk.archive = ''",
    "$null = Receive-File $url $archive": "receive_file()",
    "} catch {": "except Thrown:",
    'Fail "could not download $shown." (Hide-Password "$_") '
    "'check the network (HTTPS_PROXY, if you need one), then run this again to resume'":
        "raise Failed('could not download')",
    "$got = Get-Sum $archive": "got = disk.archive",
    "if ($got -ne $UvSums[$machine]) {": "if got != WHOLE:",
    "Fail 'the download of uv is damaged or was changed.' "
    '"SHA-256: expected $($UvSums[$machine]), got $got" '
    "'run this again; if it happens again, ask your network administrator'":
        "raise Failed('was changed')",
}  # fmt: skip


class Thrown(Exception):
    """`throw` in the script."""


class Failed(Exception):
    """`Fail` in the script, which says it and ends."""


@dataclass
class Disk:
    """What lies there of the archive, and the server that has it.

    has_ranges: it can go on. cut_after: letters after which the connection breaks, once.
    is_reached: at all.
    """

    archive: str = ""
    served: str = WHOLE
    has_ranges: bool = True
    cut_after: int | None = None
    is_reached: bool = True
    num_asked: int = 0

    def curl(self) -> int:
        self.num_asked += 1
        if not self.is_reached:
            return 6
        if self.archive and not self.has_ranges:
            return 33
        if self.archive and len(self.archive) >= len(self.served):
            return 22
        if self.cut_after is not None:
            self.archive += self.served[len(self.archive) :][: self.cut_after]
            self.cut_after = None
            return 18
        self.archive += self.served[len(self.archive) :]
        return 0

    def fetch_whole(self) -> None:
        self.archive = self.served


def statements(body: str) -> list[str]:
    """A function's lines without comments, each statement on a line of its own."""
    kept = [line.strip() for line in body.splitlines()]
    text = "\n".join(line for line in kept if line and not line.startswith("#"))
    text = re.sub(r" `\n", " ", text)
    text = re.sub(r"=\n", "= ", text)
    text = re.sub(r"@\(\n(.*?)\n\)", lambda one: f"@( {one[1]} )", text, flags=re.DOTALL)
    return text.splitlines()


def python_of(lines: list[str]) -> str:
    made, depth = ["def body():"], 1
    for line in lines:
        if line.startswith("}"):
            depth -= 1
        if line == "}":
            continue
        assert line in LINES, f"not known here: {line}"
        made.append("    " * depth + LINES[line])
        depth += line.endswith("{")
    return "\n".join(made)


@pytest.fixture(scope="module")
def functions() -> tuple[str, str]:
    """`Receive-File`, and the part of `Get-Uv` that downloads, as Python."""
    script = INSTALL.read_text(encoding="utf-8")
    found = dict(re.findall(r"^function ([\w-]+)[^\n]*\{\n(.*?)^\}", script, re.DOTALL | re.M))
    getting = statements(found["Get-Uv"])
    begin = getting.index("if ((Get-Sum $archive) -ne $UvSums[$machine]) {")
    end = next(at for at, line in enumerate(getting) if line.startswith("$new = "))
    return python_of(statements(found["Receive-File"])), python_of(getting[begin:end])


def get_uv(functions: tuple[str, str], disk: Disk, *, has_curl: bool = True) -> None:
    names: dict[str, Any] = {"disk": disk, "WHOLE": WHOLE, "Thrown": Thrown, "Failed": Failed,
                             "has_curl": has_curl}  # fmt: skip
    receiving, getting = functions
    exec(receiving, names)
    names["receive_file"] = names["body"]
    exec(getting, names)
    names["body"]()
    assert disk.archive == WHOLE


def test_archive_is_fetched_once(functions: tuple[str, str]) -> None:
    disk = Disk()
    get_uv(functions, disk)
    get_uv(functions, disk)
    assert disk.num_asked == 1


def test_download_that_broke_off_is_gone_on_with(functions: tuple[str, str]) -> None:
    disk = Disk(cut_after=5)
    with pytest.raises(Failed, match="could not download"):
        get_uv(functions, disk)
    assert disk.archive == WHOLE[:5]
    get_uv(functions, disk)


@pytest.mark.parametrize("served", [{"has_ranges": False}, {}])
def test_rest_of_something_else_is_fetched_once_more(
    functions: tuple[str, str], served: dict[str, Any]
) -> None:
    """33 where the server cannot go on; 22 where nothing lies behind what is there."""
    disk = Disk(archive="x" * len(WHOLE), **served)
    get_uv(functions, disk)
    assert disk.num_asked == 2


def test_server_that_is_not_reached_is_reported(functions: tuple[str, str]) -> None:
    for archive in ("", WHOLE[:5]):
        disk = Disk(archive=archive, is_reached=False)
        with pytest.raises(Failed, match="could not download"):
            get_uv(functions, disk)
        assert disk.archive == archive


def test_archive_that_was_changed_is_removed(functions: tuple[str, str]) -> None:
    disk = Disk(served="something else")
    with pytest.raises(Failed, match="was changed"):
        get_uv(functions, disk)
    assert disk.archive == ""


def test_old_windows_without_curl_fetches_it_whole(functions: tuple[str, str]) -> None:
    disk = Disk(archive=WHOLE[:5])
    get_uv(functions, disk, has_curl=False)
    assert disk.num_asked == 0
