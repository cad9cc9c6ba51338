"""uv, pip and conda: resolving wheels, creating an environment, and installing into it.

Only wheels are used: nothing is compiled, and no package runs code while it is installed.
They are installed from a folder, with hashes: the network is not used again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.environment import Installer
from flatout.schema.package_indexes import Indexes
from flatout.setup.packages.micromamba import own_settings
from flatout.setup.packages.uv import own_cache
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.command import Completed, run
from flatout.system.paths import cache_folder
from flatout.system.process_env import setup_environment

_RESOLVE_S = 1800.0
_MAKE_S = 1800.0
_INSTALL_S = 3600.0

# What uv, pip and conda print where the packages are not the reason.
_FULL = ("No space left on device", "os error 28", "not enough space on the disk", "os error 112")
_CERTIFICATE = (
    "CERTIFICATE_VERIFY_FAILED", "UnknownIssuer", "invalid peer certificate",
    "SSL peer certificate or SSH remote key was not OK",
)  # fmt: skip
_UNREACHABLE = (
    "error sending request", "dns error", "Failed to fetch", "Failed to establish a new connection",
    "Max retries exceeded", "name resolution", "ConnectTimeoutError", "Connection refused",
    "Network connectivity is disabled", "CondaHTTPError", "operation timed out", "ProxyError",
    "Failed to download", "Could not resolve host", "Could not connect to server",
)  # fmt: skip


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements to resolve.

    lines: requirements, and files of them as `-r FILE`. constraints: version limits on packages
    that are needed anyway. python: an interpreter of that version, if one is installed.
    index: the framework's own. is_whole: the lines name all packages; no dependency is added.
    folder: for temporary files.
    """

    lines: tuple[str, ...]
    python_version: str
    python: str | None
    indexes: Indexes
    index: str | None = None
    is_nightly: bool = False
    is_offline: bool = False
    is_whole: bool = False
    constraints: tuple[str, ...] = ()
    folder: Path


class Program(Protocol):
    """A program that can resolve, create and install."""

    @property
    def name(self) -> Installer: ...

    def resolve(self, request: ResolveRequest) -> str:
        """The text of uv's `pylock.toml`, or of pip's report."""
        ...

    def make(self, folder: Path, python: str, *, is_offline: bool) -> None:
        """Makes an empty environment. python: an interpreter, or the version to look for."""
        ...

    def install(self, python: str, lines: Path, links: Path, *, is_again: bool = False) -> None:
        """Installs what a file of requirements names from a folder of wheels, and nothing else.

        is_again: reinstall packages that already have that version.
        """
        ...


class Uv:
    """uv, as a program. path: where it is. kept_open: lock descriptors that it inherits."""

    name: Installer = "uv"

    def __init__(self, path: str, indexes: Indexes, kept_open: tuple[int, ...] = ()) -> None:
        self._path = path
        self._kept_open = kept_open
        self._environment = {**own_cache(path), **_reaching(indexes, UV_NO_PROGRESS="1")}
        if indexes.python_mirror:
            self._environment["UV_PYTHON_INSTALL_MIRROR"] = indexes.python_mirror

    def resolve(self, request: ResolveRequest) -> str:
        """The text of `pylock.toml`."""
        lock = request.folder / "pylock.toml"
        lock.unlink(missing_ok=True)
        argv = [
            self._path, "pip", "compile", *_requirement_files(request),
            "--output-file", str(lock), "--quiet", "--python-version", request.python_version,
            "--only-binary", ":all:", "--no-header", "--no-annotate", *_uv_index_words(request),
            *_constraints(request),
        ]  # fmt: skip
        flags = {
            "--prerelease=allow": request.is_nightly,
            "--offline": request.is_offline,
            "--no-deps": request.is_whole,
        }
        argv += [flag for flag, is_on in flags.items() if is_on]
        _require(run(argv, _RESOLVE_S, self._environment), "uv", "resolving packages")
        return lock.read_text(encoding="utf-8")

    def make(self, folder: Path, python: str, *, is_offline: bool) -> None:
        """An empty virtual environment; downloads the interpreter first if it is not installed."""
        argv = [self._path, "venv", "--quiet", "--no-project", "--allow-existing"]
        argv += ["--python", python, str(folder), *(["--offline"] if is_offline else [])]
        done = run(argv, _MAKE_S, self._environment, self._kept_open)
        _require(done, "uv", "creating the environment")

    def install(self, python: str, lines: Path, links: Path, *, is_again: bool = False) -> None:
        """Installs from a folder of wheels."""
        argv = [
            self._path, "pip", "install", "--quiet", "--python", python, "--no-deps", "--no-index",
            "--offline", "--require-hashes", "--find-links", str(links), "-r", str(lines),
        ]  # fmt: skip
        argv += ["--reinstall"] if is_again else []
        done = run(argv, _INSTALL_S, self._environment, self._kept_open)
        _require(done, "uv", "installing")


class Pip:
    """pip of an interpreter, which works on others too. python: that interpreter."""

    name: Installer = "pip"

    def __init__(self, python: str, indexes: Indexes, kept_open: tuple[int, ...] = ()) -> None:
        self._python = python
        self._kept_open = kept_open
        self._environment = _reaching(indexes)

    def resolve(self, request: ResolveRequest) -> str:
        """The text of the report. pip runs the interpreter, so it must be installed."""
        if request.python is None:
            raise UsageError(
                "python-version-not-found",
                f"Python {request.python_version} is not installed.",
                because="pip cannot download it; uv can",
                fix="install it, or let uv get it: --manager uv",
            )
        argv = [
            self._python, "-P", "-m", "pip", "--python", request.python, "install", "--dry-run",
            "--ignore-installed", "--quiet", "--report", "-", "--only-binary", ":all:",
            *_pip_index_words(request), *_constraints(request),
        ]  # fmt: skip
        for file in _requirement_files(request):
            argv += ["-r", file]
        argv += ["--pre"] if request.is_nightly else []
        argv += ["--no-deps"] if request.is_whole else []
        done = run(argv, _RESOLVE_S, self._environment)
        _require(done, "pip", "resolving packages")
        return done.stdout[done.stdout.find("{") :]

    def make(self, folder: Path, python: str, *, is_offline: bool) -> None:
        """An empty virtual environment. pip is installed like everything else: Debian's Python
        has no `ensurepip` unless its package python3-venv is installed."""
        # -I, since Python before 3.11 does not know -P.
        argv = [python, "-I", "-m", "venv", "--without-pip", str(folder)]
        done = run(argv, _MAKE_S, self._environment, self._kept_open)
        _require(done, "venv", "creating the environment")

    def install(self, python: str, lines: Path, links: Path, *, is_again: bool = False) -> None:
        """Installs from a folder of wheels."""
        argv = [
            self._python, "-P", "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
            "--no-index", "--require-hashes", "--find-links", str(links), "-r", str(lines),
        ]  # fmt: skip
        argv += ["--force-reinstall"] if is_again else []
        done = run(argv, _INSTALL_S, self._environment, self._kept_open)
        _require(done, "pip", "installing")


class Conda:
    """conda, mamba or micromamba for the environment itself; another program installs wheels.

    conda's `base` is never touched: a new prefix is created.

    path: of the program; flatout's own micromamba may still have to be downloaded to it.
    """

    name: Installer = "conda"

    def __init__(
        self, path: str, inner: Program, indexes: Indexes, kept_open: tuple[int, ...] = ()
    ) -> None:
        self._path = path
        self._kept_open = kept_open
        self._inner = inner
        self._environment = _reaching(indexes, **own_settings(path))
        if indexes.certificates:
            # conda and libmamba read this one alone.
            self._environment.setdefault("REQUESTS_CA_BUNDLE", indexes.certificates[0])

    def resolve(self, request: ResolveRequest) -> str:
        """Delegates to the other program."""
        return self._inner.resolve(request)

    def make(self, folder: Path, python: str, *, is_offline: bool) -> None:
        """A prefix with Python from conda-forge. python: the version.

        The folder already contains a note, and mamba 2 creates nothing in a folder that is not
        empty. So it is first marked as an empty prefix, by conda's and mamba's history file.
        """
        history = folder / "conda-meta" / "history"
        with mapped_os_errors(folder):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch()
        argv = [
            self._path, "install", "--yes", "--quiet", "--prefix", str(folder),
            "--override-channels", "--channel", "conda-forge", f"python={python}",
        ]  # fmt: skip
        argv += ["--offline"] if is_offline else []
        done = run(argv, _MAKE_S, self._environment, self._kept_open)
        _require(done, "conda", "creating the environment")

    def install(self, python: str, lines: Path, links: Path, *, is_again: bool = False) -> None:
        """Delegates to the other program."""
        self._inner.install(python, lines, links, is_again=is_again)


def interpreter_in(folder: Path, installer: Installer) -> Path:
    """The path of an environment's interpreter."""
    if sys.platform == "win32":
        return folder / ("python.exe" if installer == "conda" else r"Scripts\python.exe")
    return folder / "bin" / "python"


def _reaching(indexes: Indexes, **added: str) -> dict[str, str]:
    """The environment variables of a program that uses the network."""
    environment = setup_environment(**added)
    # In flatout's folder, so that it is removed with flatout.
    environment.setdefault("PIP_CACHE_DIR", str(cache_folder() / "pip"))
    # Company certificates are in the system's store, where uv does not look by default.
    for name in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"):  # The second until uv 0.12.
        environment.setdefault(name, "1")
    if indexes.certificates:
        environment.setdefault("SSL_CERT_FILE", indexes.certificates[0])
        # Older pips do not read that one.
        environment.setdefault("PIP_CERT", indexes.certificates[0])
    if indexes.proxy:
        for name in ("HTTPS_PROXY", "HTTP_PROXY"):
            if not os.environ.get(name) and not os.environ.get(name.lower()):
                environment[name] = indexes.proxy
    return environment


def _requirement_files(request: ResolveRequest) -> list[str]:
    """The requirements files. The user's own are passed as arguments: in a `-r` line of a file pip
    would split a path at its spaces, and drop Windows' backslashes."""
    file = request.folder / "requirements.in"
    lines = [line for line in request.lines if not line.startswith("-r ")]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(file), *(line[3:] for line in request.lines if line.startswith("-r "))]


def _constraints(request: ResolveRequest) -> list[str]:
    if not request.constraints:
        return []
    file = request.folder / "constraints.txt"
    file.write_text("\n".join(request.constraints) + "\n", encoding="utf-8")
    return ["--constraint", str(file)]


def _uv_index_words(request: ResolveRequest) -> list[str]:
    indexes = request.indexes
    words = ["--default-index", indexes.default] if indexes.default else []
    extra = [request.index, *indexes.extra] if request.index else [*indexes.extra]
    for url in dict.fromkeys(extra):
        words += ["--index", url]
    for link in indexes.find_links:
        words += ["--find-links", link]
    for host in indexes.trusted_hosts:
        words += ["--allow-insecure-host", host]
    # As pip does it: the best version of all indexes. Old versions in the framework's own index
    # must not hide newer ones elsewhere.
    return [*words, "--index-strategy", "unsafe-best-match"]


def _pip_index_words(request: ResolveRequest) -> list[str]:
    indexes = request.indexes
    words = ["--index-url", indexes.default] if indexes.default else []
    for url in dict.fromkeys([*([request.index] if request.index else []), *indexes.extra]):
        words += ["--extra-index-url", url]
    for link in indexes.find_links:
        words += ["--find-links", link]
    for host in indexes.trusted_hosts:
        words += ["--trusted-host", host]
    return [*words, "--no-index"] if request.is_offline else words


def _require(done: Completed, program: str, doing: str) -> None:
    if done.exit_code != 0:
        raise failed_install(f"{done.stderr}\n{done.stdout}", done.reason, program, doing)


def failed_install(output: str, reason: str | None, program: str, doing: str) -> FlatoutError:
    """Classifies an installer's failure: full disk, network, certificate, or the packages."""
    because = reason or _last_words(output)
    if any(text in output for text in _FULL):
        return RunFailed(
            "disk-full",
            f"no space left while {doing}.",
            because=because,
            fix="free some space, then run the same command again: it continues where it stopped",
        )
    if any(text in output for text in _CERTIFICATE):
        return untrusted(because)
    if any(text in output for text in _UNREACHABLE):
        return RunFailed(
            "index-not-reachable",
            f"cannot reach the package index: {doing} failed.",
            because=because,
            fix="check the network (HTTPS_PROXY, if you need one), or name a mirror: "
            "--mirror packages=URL",
        )
    if doing == "resolving packages":
        return UsageError(
            "no-such-packages",
            "these requirements cannot be satisfied together.",
            because=because,
            fix="relax them: leave out --with, -r, --cuda or --python",
        )
    return RunFailed(
        "installer-failed",
        f"{program} failed while {doing}.",
        because=because,
        fix="run the same command again; if it fails again, switch between --manager pip and "
        "--manager uv",
        printed=output,
    )


def untrusted(because: str) -> RunFailed:
    """The error for an untrusted certificate."""
    return RunFailed(
        "certificate-not-trusted",
        "the certificate of the package index is not trusted here.",
        because=because,
        fix="if your company has its own certificate authority: SSL_CERT_FILE=/path/ca.pem",
    )


def _last_words(output: str) -> str:
    lines = [line.strip(" \t│╰─▶×├") for line in output.splitlines()]
    errors = [
        line for line in lines if line and not line.startswith(("WARNING", "warning", "hint"))
    ]
    return " ".join(errors[-6:])[-600:]
