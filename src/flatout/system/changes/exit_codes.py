"""The meaning of Windows installers' exit codes: they print it in the language of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

# Source: microsoft/winget-cli, doc/windows/package-manager/winget/returnCodes.md and
# AppInstallerErrors.h; 3010 and 1641: learn.microsoft.com/windows/win32/msi/error-codes.
_OF_WINGET: Mapping[int, str] = MappingProxyType({
    0x8A150008: "the installer could not be downloaded",
    0x8A150010: "there is no installer for this system",
    0x8A150011: "the installer's hash differs from the one in winget's list: try again later",
    0x8A150014: "the package was not found in winget",
    0x8A150017: "the version was not found in winget",
    0x8A150019: "it must be run as administrator",
    0x8A15002B: "it is installed and up to date",
    0x8A15003A: "a policy of your company forbids it",
    0x8A150041: "the package's license was not accepted",
    0x8A150042: "winget asked a question and got no answer",
    0x8A150045: "winget's list of packages cannot be reached",
    0x8A150046: "the terms of winget's source were not accepted",
    0x8A150101: "the program is running: close it",
    0x8A150102: "another installation is running: wait for it",
    0x8A150103: "one of its files is in use: close the program that uses it",
    0x8A150105: "the disk is full",
    0x8A150107: "there is no network",
    0x8A15010A: "Windows must restart before it can be installed",
    0x8A15010B: "Windows restarts to finish it",
    0x8A15010C: "it was canceled",
    0x8A15010F: "a policy of your company forbids it",
})  # fmt: skip
_OF_INSTALLERS: Mapping[int, str] = MappingProxyType({
    1223: "the administrator prompt of Windows was declined",
    1602: "it was canceled",
    1618: "another installation is running: wait for it",
    1641: "Windows restarts to finish it",
    3010: "it is installed; Windows must restart to finish it",
})  # fmt: skip


def ended_text(argv: Sequence[str], exit_code: int | None) -> str:
    """The end of a program, with the meaning of its code if known."""
    plain = f"it ended with exit code {exit_code}"
    if exit_code is None or argv[0].removesuffix(".exe") != "winget":
        return plain
    # Python has them without a sign, PowerShell with one.
    code = exit_code & 0xFFFFFFFF
    meaning = _OF_WINGET.get(code) or _OF_INSTALLERS.get(code)
    shown = f"0x{code:08X}" if code > 0xFFFF else str(code)
    return f"it ended with exit code {shown}" + (f": {meaning}" if meaning else "")
