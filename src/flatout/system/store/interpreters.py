"""The interpreter that trains: where it is, and what it must have installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import flatout
from flatout.errors import UsageError
from flatout.system import atomic_files
from flatout.system.command import run
from flatout.system.paths import state_path
from flatout.system.pythons import not_a_python
from flatout.system.store import environments

_MOST_KNOWN = 100

# Run by another interpreter. An empty entry of sys.path is the current folder, whose files must
# not be taken for the standard library's.
_PRINT_VERSIONS = """
import sys
sys.path = [entry for entry in sys.path if entry]
import json
try:
    import flatout
    version = flatout.__version__
except ImportError:
    version = None
print(json.dumps([list(sys.version_info[:2]), version]))
"""


def resolve_interpreter(
    python: str | None, environment: str | None, default: str | None = None
) -> str:
    """The absolute path of the interpreter that a command runs in.

    Args:
        python, environment: `--python` and `--env`.
        default: where neither is given; None is this interpreter.

    Raises:
        UsageError: python-and-environment, unknown-environment, python-not-found.
    """
    return find_interpreter(environments.requested_python(python, environment) or default)


def resolve_with_flatout(
    python: str | None, environment: str | None, default: str | None = None
) -> tuple[str, tuple[int, int]]:
    """The same, of an interpreter that has this version of flatout; and the version of its Python.

    Raises:
        UsageError: also python-too-old, flatout-not-in-environment.
    """
    interpreter = resolve_interpreter(python, environment, default)
    return interpreter, check_interpreter(interpreter, flatout.__version__)


def find_interpreter(text: str | None) -> str:
    """The absolute path of the interpreter that is to train; None means this one.

    Raises:
        UsageError: python-not-found.
    """
    if text is None:
        return sys.executable
    path = shutil.which(os.path.expanduser(text))
    if path is None:
        raise UsageError(
            "python-not-found",
            f"`--python {text}` is not an executable program.",
            fix="give the path of a Python interpreter, such as .venv/bin/python",
        )
    # Links are kept: in a virtual environment the link is what makes the environment.
    return os.path.abspath(path)


def remember(python: str) -> None:
    """Notes that a user's own command has run this interpreter."""
    if is_known(python):
        return
    path = _known_file()
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in [*_remembered(), python][-_MOST_KNOWN:])
        atomic_files.write_atomically(path, text.encode())


def is_known(python: str) -> bool:
    """Whether an interpreter may be run unasked: flatout's own, one of an environment that flatout
    has made, or one that a command of this user has run before.

    The header of a run does not make it known: the folder may be a stranger's.
    """
    made = (environment.python for environment in environments.list_environments())
    return python == sys.executable or python in _remembered() or python in made


def _remembered() -> list[str]:
    path = _known_file()
    with atomic_files.mapped_os_errors(path):
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _known_file() -> Path:
    return state_path("interpreters.txt")


def check_interpreter(python: str, version: str) -> tuple[int, int]:
    """Makes sure that an interpreter has this version of flatout; returns its own version.

    Raises:
        UsageError: python-not-found, python-too-old, flatout-not-in-environment.
    """
    if python == sys.executable:
        return sys.version_info[:2]
    python_version, installed = _query_versions(python)
    if python_version < (3, 11):
        raise UsageError(
            "python-too-old",
            f"{python} is Python {python_version[0]}.{python_version[1]}.",
            because="flatout needs Python 3.11 or later",
            fix="choose another --python",
        )
    if installed != version:
        raise UsageError(
            "flatout-not-in-environment",
            f"{python} has flatout {installed}, this is {version}."
            if installed
            else f"{python} has no flatout.",
            because="the command line and the training environment need the same version",
            fix=f"{python} -m pip install {_own_requirement(version)}",
        )
    return python_version


def own_command() -> str:
    """The words that run `flatout`: its name if the shell finds it, else its path."""
    if shutil.which("flatout"):
        return "flatout"
    script = Path(sys.executable).with_name("flatout.exe" if sys.platform == "win32" else "flatout")
    return str(script) if script.is_file() else f"{sys.executable} -m flatout"


def _query_versions(python: str) -> tuple[tuple[int, int], str | None]:
    done = run([python, "-c", _PRINT_VERSIONS], timeout_s=60)
    try:
        python_version, version = json.loads(done.stdout)
        return (python_version[0], python_version[1]), version
    except (ValueError, TypeError, IndexError) as error:
        because = done.reason or done.stderr.strip() or f"its exit code is {done.exit_code}"
        raise not_a_python(python, because) from error


def _own_requirement(version: str) -> str:
    """The requirement that installs this flatout: its checkout's folder, else the release."""
    folder = checkout()
    return f'"{folder}"' if folder else f"flatout=={version}"


def checkout() -> Path | None:
    """The folder of sources that this flatout runs or was installed from."""
    # urllib.request takes 30 ms to import, and every command would pay for it.
    from urllib.request import url2pathname

    try:
        direct_url = metadata.distribution("flatout").read_text("direct_url.json")
        source = json.loads(direct_url) if direct_url else {}
        if "dir_info" in source:
            return Path(url2pathname(unquote(urlsplit(source["url"]).path)))
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        pass  # Not installed, or by something that says nothing: the package's location decides.
    folder = Path(flatout.__file__).parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None
