"""Non-interactive winget commands: the user has agreed to the plan before they run."""

from __future__ import annotations

# Without a source it also queries the Microsoft Store, whose terms must be accepted first on a
# fresh Windows. Source: microsoft/winget-cli, WorkflowBase.cpp (HandleSourceAgreements),
# PromptFlow.cpp.
_SOURCE = ("--source", "winget", "--accept-source-agreements", "--disable-interactivity")
AGREES = "you agree to its license and to the terms of winget's source"


def winget_install(package: str, override: str, *, version: str | None = None) -> tuple[str, ...]:
    """Installs a package. override: arguments for its installer.

    With --force, since winget treats the installation of a package of which any version is
    installed as an upgrade, and exits with 0x8A15002B. Source: microsoft/winget-cli#4262.
    """
    return (
        "winget", "install", "--exact", "--id", package,
        *(("--version", version) if version else ()), *_SOURCE, "--accept-package-agreements",
        "--force", "--override", override,
    )  # fmt: skip


def winget_uninstall(package: str, *, version: str | None = None) -> tuple[str, ...]:
    """Uninstalls a package; with several versions installed winget needs the version."""
    which = ("--version", version) if version else ()
    return ("winget", "uninstall", "--exact", "--id", package, *which, *_SOURCE, "--silent")
