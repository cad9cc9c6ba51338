"""Commands of winget that ask nothing: the person has agreed to the plan before they run."""

from __future__ import annotations

# Without a source it asks the Microsoft Store too, whose terms a fresh Windows wants agreed to
# first. Source: microsoft/winget-cli, WorkflowBase.cpp (HandleSourceAgreements), PromptFlow.cpp.
_SOURCE = ("--source", "winget", "--accept-source-agreements", "--disable-interactivity")
AGREES = "you agree to its licence and to the terms of winget's source"


def winget_install(package: str, override: str, *, version: str | None = None) -> tuple[str, ...]:
    """Installs a package. override: what its installer is given.

    With --force, since winget takes an installed version, another one too, for the wish to bring
    that up to date, and ends with 0x8A15002B. Source: microsoft/winget-cli#4262.
    """
    return (
        "winget", "install", "--exact", "--id", package,
        *(("--version", version) if version else ()), *_SOURCE, "--accept-package-agreements",
        "--force", "--override", override,
    )  # fmt: skip


def winget_uninstall(package: str, *, version: str | None = None) -> tuple[str, ...]:
    """Takes a package away; with several versions installed winget wants to know which."""
    which = ("--version", version) if version else ()
    return ("winget", "uninstall", "--exact", "--id", package, *which, *_SOURCE, "--silent")
