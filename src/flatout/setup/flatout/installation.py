"""Installation, update and removal of this flatout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import flatout
from flatout import __version__
from flatout.errors import RunFailed, UsageError
from flatout.setup.model.flatout_installation import Installation, Way
from flatout.system import atomic_files, paths
from flatout.system import command as system_command
from flatout.system.store.interpreters import checkout

_VERSION_LIMIT_S = 60.0


def find_installation() -> Installation:
    """This flatout, by the traces that its installer has left in the environment."""
    folder = Path(sys.prefix)
    receipt = paths.app_folder() / "receipt"
    notes = read_receipt(receipt)
    noted = notes.get("environment")
    is_script = bool(noted) and Path(noted or "").resolve() == folder.resolve()
    sources = own_sources()
    return Installation(
        version=__version__,
        way="script" if is_script else way_of(folder, is_checkout=sources is not None),
        python=sys.executable,
        folder=str(folder),
        # Not `importlib.util.find_spec`: setuptools takes that for a running pip, and no longer
        # provides its distutils, which torch's compiler needs.
        has_pip=PathFinder.find_spec("pip") is not None,
        checkout=str(sources) if sources else None,
        launcher=notes.get("launcher") or None if is_script else None,
        profiles=read_profiles(receipt) if is_script else (),
    )


def own_sources() -> Path | None:
    """The folder of sources that this flatout runs from; None where it was installed as a copy."""
    package = Path(flatout.__file__).parent
    installed = checkout()
    if installed is not None and package.is_relative_to(installed):
        return installed
    # PYTHONPATH may lead to sources although a copy is installed: that copy is not running.
    is_copy = package.resolve().is_relative_to(Path(sys.prefix).resolve())
    return None if is_copy else package.parents[1]


def read_receipt(path: Path) -> dict[str, str]:
    """The receipt of an install script, from `key: value` lines; empty where there is none."""
    return dict(_receipt_lines(path))


def read_profiles(path: Path) -> tuple[str, ...]:
    """The shells' profiles that an install script has edited, one for each shell."""
    return tuple(dict.fromkeys(value for key, value in _receipt_lines(path) if key == "profile"))


def way_of(folder: Path, *, is_checkout: bool) -> Way:
    """The tool that created flatout's environment."""
    if (folder / "uv-receipt.toml").is_file():
        return "uv"
    if (folder / "pipx_metadata.json").is_file():
        return "pipx"
    if is_checkout:
        return "checkout"
    return "conda" if (folder / "conda-meta").is_dir() else "pip"


def find_source(text: str) -> Path:
    """A wheel, an archive or a folder of sources, by its absolute path.

    Raises:
        UsageError: source-not-found.
    """
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        is_source = (path / "pyproject.toml").is_file()
    else:
        is_source = path.is_file() and path.name.endswith((".whl", ".tar.gz"))
    if not is_source:
        raise UsageError(
            "source-not-found",
            f"flatout cannot be installed from {text}.",
            because="it does not exist"
            if not path.exists()
            else "it is not a wheel, a source archive or a folder of sources",
            fix="pass a wheel (.whl), a source archive (.tar.gz) or a folder of sources",
        )
    return path


def update_command(
    installation: Installation, version: str | None = None, file: str | None = None
) -> tuple[str, ...]:
    """The command that installs the newest version, that version, or that file.

    Raises:
        UsageError: cannot-update-here.
    """
    what = file or (f"flatout=={version}" if version else "flatout")
    is_newest = what == "flatout"
    if installation.way == "checkout":
        raise UsageError(
            "cannot-update-here",
            "this flatout runs from its sources.",
            because=f"its sources are in {installation.checkout}",
            fix=f"update them: git -C {installation.checkout} pull",
        )
    if installation.way == "uv":
        uv = _require_program("uv", installation)
        return (uv, "tool", "upgrade", "flatout") if is_newest else (
            uv, "tool", "install", "--force", what)  # fmt: skip
    if installation.way == "pipx":
        pipx = _require_program("pipx", installation)
        return (pipx, "upgrade", "flatout") if is_newest else (pipx, "install", "--force", what)
    if _is_externally_managed(installation):
        raise UsageError(
            "cannot-update-here",
            "this flatout is installed in the operating system's Python.",
            because="the system's package manager manages the packages in it",
            fix="use that one, or install flatout into its own environment: sh install.sh",
        )
    return (*_installer(installation), "--upgrade", what)


def remove_command(installation: Installation) -> tuple[str, ...] | None:
    """The command that uninstalls flatout; None where its files are simply deleted, or stay."""
    if installation.way in ("script", "checkout"):
        return None
    if installation.way == "uv":
        return (_require_program("uv", installation), "tool", "uninstall", "flatout")
    if installation.way == "pipx":
        return (_require_program("pipx", installation), "uninstall", "flatout")
    words = ("uninstall", "flatout")
    if installation.has_pip:
        return (installation.python, "-P", "-m", "pip", *words, "--yes")
    uv = _require_program("uv", installation)
    return (uv, "pip", *words, "--python", installation.python)


def run_shown(command: tuple[str, ...]) -> None:
    """Runs a command to its end; what it prints goes to stderr, where messages go.

    Raises:
        RunFailed: command-failed.
    """
    because = system_command.run_shown(command)
    if because is not None:
        raise _command_failed(command, because)


def version_now(installation: Installation) -> str | None:
    """The version that a new process of this installation has; None where none starts."""
    argv = [installation.python, "-P", "-m", "flatout", "--version"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_VERSION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().removeprefix("flatout ") or None if done.returncode == 0 else None


def forget_checksum(installation: Installation) -> None:
    """Clears the install script's checksum after an update: it no longer matches."""
    path = paths.app_folder() / "receipt"
    if installation.way == "script" and path.is_file():
        lines = [(key, "" if key == "sha256" else value) for key, value in _receipt_lines(path)]
        text = "".join(f"{key}: {value}\n" for key, value in lines)
        atomic_files.write_atomically(path, text.encode())


def shell_profile() -> str:
    """The file that the user's shell reads when it starts."""
    shell = Path(os.environ.get("SHELL", "")).name
    home = Path.home()
    if shell == "zsh":
        return str(Path(os.environ.get("ZDOTDIR") or home) / ".zshrc")
    # A terminal on a Mac starts a login shell.
    name = ".bash_profile" if sys.platform == "darwin" else ".bashrc"
    return str(home / (name if shell == "bash" else ".profile"))


def installer_text() -> str:
    """install.sh, as it comes with this flatout."""
    import flatout

    package = Path(flatout.__file__).parent
    # In a checkout it is in the top folder.
    candidates = (package / "setup" / "install.sh", package.parents[1] / "install.sh")
    path = next((path for path in candidates if path.is_file()), candidates[0])
    with atomic_files.mapped_os_errors(path):
        return path.read_text(encoding="utf-8")


def without_block(text: str, name: str = "flatout") -> str:
    """A shell's profile without the block that an install script has put there."""
    begin, end = f"# >>> {name} >>>\n", f"# <<< {name} <<<\n"
    head, mark, rest = text.partition(begin)
    if not mark or end not in rest:
        return text
    # The script has added an empty line before it.
    return head.removesuffix("\n") + rest.partition(end)[2]


def clean_profile(profile: str) -> None:
    """Takes the install script's block out of a shell's profile; the rest stays as it is."""
    path = Path(profile)
    with atomic_files.mapped_os_errors(path):
        try:
            before = path.read_bytes()
        except FileNotFoundError:
            return
        # latin-1 maps each byte to one character, so the rest survives in any encoding.
        after = without_block(before.decode("latin-1")).encode("latin-1")
        if after == before:
            return
        if not after.strip() and path.parent.name == "conf.d":
            path.unlink()
            return
        # Written in place: a link stays a link, and permissions stay.
        with open(path, "r+b") as file:
            file.write(after)
            file.truncate()
            os.fsync(file.fileno())


def forget_user_path(folder: str) -> None:
    """Removes a folder from the user's Path in Windows' registry; does nothing elsewhere."""
    if sys.platform != "win32":
        return
    import winreg

    rights = winreg.KEY_READ | winreg.KEY_WRITE
    with winreg.OpenKey(winreg.HKEY_CURRENT_USER, "Environment", 0, rights) as key:
        try:
            value, kind = winreg.QueryValueEx(key, "Path")
        except FileNotFoundError:
            return
        entries = [entry for entry in str(value).split(";") if entry and entry != folder]
        winreg.SetValueEx(key, "Path", 0, kind, ";".join(entries))


def _receipt_lines(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    parts = [line.partition(": ") for line in lines]
    return [(key, value) for key, mark, value in parts if mark]


def _installer(installation: Installation) -> tuple[str, ...]:
    if installation.has_pip:
        # Not -I: what `pip install --user` has installed is invisible to it.
        return (installation.python, "-P", "-m", "pip", "install")
    uv = _require_program("uv", installation)
    return (uv, "pip", "install", "--python", installation.python)


def _require_program(name: str, installation: Installation) -> str:
    own = paths.app_folder() / "uv" / ("uv.exe" if sys.platform == "win32" else "uv")
    path = shutil.which(name) or (str(own) if name == "uv" and own.is_file() else None)
    if path is None:
        raise UsageError(
            "cannot-update-here",
            f"this flatout was installed by {name}, which was not found.",
            because=f"it is in {installation.folder}, and no {name} is on PATH",
            fix=f"put {name} on PATH",
        )
    return path


def _is_externally_managed(installation: Installation) -> bool:
    if sys.prefix != sys.base_prefix:
        return False
    library = Path(os.__file__).parent
    return installation.way == "pip" and (library / "EXTERNALLY-MANAGED").is_file()


def _command_failed(command: tuple[str, ...], because: str) -> RunFailed:
    return RunFailed(
        "command-failed",
        f"`{' '.join(command)}` failed.",
        because=because,
        fix="fix what it reports, then run this again",
    )
