"""Docker and Compose, run on the files of a cluster's folder.

Compose is v2, the plugin `docker compose`, or v1, `docker-compose`, as long as Debian ships it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from flatout.cluster.compose.node_report import NodeQuery
from flatout.cluster.model.cluster import NodeReport
from flatout.errors import RunFailed, UsageError
from flatout.system import clock, command
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.host_system import Completed, System

# Compose v1 is a Python program that takes a second to start.
ASK_LIMIT_S = 60.0
# Lines of a container's log in an error.
_NUM_LAST = 6
_FIRST_V1 = (1, 28)
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Compose(msgspec.Struct, frozen=True, kw_only=True):
    """The Compose program. words: its command. docker: version of the engine."""

    words: tuple[str, ...]
    version: str
    docker: str

    @property
    def is_v1(self) -> bool:
        """Whether it is the one before the plugin."""
        return self.version.startswith("1.")

    def argv(self, folder: Path, *words: str) -> list[str]:
        """The command line for a cluster's folder."""
        return [
            *self.words, "--project-directory", str(folder), "--file",
            str(folder / "compose.yaml"), "--env-file", str(folder / ".env"), *words,
        ]  # fmt: skip


def find_compose(system: System) -> Compose:
    """Compose, and an engine that answers.

    Raises:
        UsageError: docker-not-answering, compose-missing.
    """
    engine = system.run(["docker", "version", "--format", "{{.Server.Version}}"], ASK_LIMIT_S)
    if engine.exit_code != 0:
        raise UsageError(
            "docker-not-answering",
            "Docker does not answer.",
            because=engine.reason or _error_text(engine),
            fix="start it (Docker Desktop, or sudo systemctl start docker); flatout doctor shows "
            "why it does not start",
        )
    for words in (("docker", "compose"), ("docker-compose",)):
        done = system.run([*words, "version", "--short"], ASK_LIMIT_S)
        match = re.search(r"\d+\.\d+\.\d+\S*", done.stdout) if done.exit_code == 0 else None
        if match:
            _refuse_old(match[0])
            return Compose(words=words, version=match[0], docker=engine.stdout.strip())
    raise UsageError(
        "compose-missing",
        "Docker answers, but Docker Compose is not installed.",
        fix="install docker-compose-plugin (Docker's repository), docker-compose-v2 (Ubuntu) or "
        "docker-compose (Debian)",
    )


def config(compose: Compose, folder: Path, system: System) -> Any:
    """The services of a folder as Compose understands them, everything filled in.

    Raises:
        UsageError: compose-file-refused, cluster-package-missing.
    """
    # Profiles are named one by one: only newer versions take `*`.
    words = ["--profile", "ingestion", "--profile", "training", "--profile", "inference", "config"]
    if not compose.is_v1:
        words += ["--format", "json"]
    done = system.run(compose.argv(folder, *words), ASK_LIMIT_S)
    if done.exit_code != 0:
        raise UsageError(
            "compose-file-refused",
            f"Compose rejects {folder / 'compose.yaml'}.",
            because=done.reason or _error_text(done),
            fix="fix what it names; to compare, flatout cluster init writes new files to another "
            "folder",
        )
    if not compose.is_v1:
        return msgspec.json.decode(done.stdout)
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            "cluster-package-missing",
            "cannot parse the configuration printed by Compose v1.",
            because="it is YAML, and PyYAML is not installed",
            fix="pip install 'flatout[cluster]', or install Compose v2",
        ) from error
    return yaml.safe_load(done.stdout)


def inspect(project: str, system: System) -> str:
    """The output of `docker inspect` for all containers of a project, as JSON.

    Raises:
        RunFailed: docker-failed.
    """
    label = f"label=com.docker.compose.project={project}"
    listed = _must(["docker", "ps", "--all", "--quiet", "--filter", label], system)
    ids = listed.stdout.split()
    if not ids:
        return "[]"
    done = system.run(["docker", "inspect", *ids], ASK_LIMIT_S)
    # A container removed in the meantime makes it fail, but it still prints the others.
    return done.stdout if done.stdout.strip() else "[]"


def restart(container: str, system: System) -> None:
    """Restarts a container.

    Raises:
        RunFailed: docker-failed.
    """
    _must(["docker", "restart", container], system)


def remove(container: str, system: System) -> None:
    """Kills and removes a container, if there is one of that name."""
    system.run(["docker", "rm", "--force", container], ASK_LIMIT_S)


def volumes(project: str, system: System) -> tuple[str, ...]:
    """Names of the project's volumes.

    Raises:
        RunFailed: docker-failed.
    """
    label = f"label=com.docker.compose.project={project}"
    done = _must(["docker", "volume", "ls", "--quiet", "--filter", label], system)
    return tuple(sorted(done.stdout.split()))


def exec_words(
    container: str,
    program: Sequence[str],
    variables: Mapping[str, str] = _NO_VARIABLES,
    *,
    is_fed: bool = False,
) -> tuple[str, ...]:
    """A program in a container as a command of this machine.

    Args:
        container: its id or name.
        program: with its arguments, as the container has it.
        variables: in addition to the container's own.
        is_fed: it reads the command's standard input.
    """
    given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    words = ["--interactive"] if is_fed else []
    return ("docker", "exec", *words, *given, container, *program)


def query_node(container: str, query: NodeQuery, system: System) -> NodeReport | str:
    """The report of a node, or why there is none."""
    asked_s = clock.now_s()
    text = msgspec.json.encode(query).decode()
    program = ("python3", "-P", "-m", "flatout.cluster.compose.node_report", text)
    done = system.run(exec_words(container, program), ASK_LIMIT_S)
    answered_s = clock.now_s()
    if done.exit_code != 0:
        return done.reason or _error_text(done)
    try:
        report = msgspec.json.decode(done.stdout, type=NodeReport)
    except msgspec.DecodeError as error:
        return f"its answer is from another version of flatout: {error}"
    return msgspec.structs.replace(report, asked_s=asked_s, answered_s=answered_s)


def put_program(container: str, path: Path) -> str:
    """Copies a file into a container, under its own name; gives its path there.

    The folder is named after the content, so that concurrent scripts do not collide.

    Raises:
        RunFailed: docker-failed.
    """
    with mapped_os_errors(path):
        content = path.read_bytes()
    folder = f"/tmp/flatout-{hashlib.sha256(content).hexdigest()[:16]}"
    # Moved into place, so that it is never seen half written.
    text = 'mkdir -p "$1" && cat >"$1/.$$" && mv "$1/.$$" "$1/$2"'
    argv = exec_words(container, ("sh", "-c", text, "sh", folder, path.name), is_fed=True)
    try:
        done = subprocess.run(
            argv, input=content, capture_output=True, timeout=ASK_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(argv, str(error)) from error
    if done.returncode != 0:
        raise _failed(argv, done.stderr.decode(errors="replace").strip()[-400:])
    return f"{folder}/{path.name}"


def last_lines(container: str, system: System) -> tuple[str, ...]:
    """The last lines that a container has printed."""
    done = system.run(["docker", "logs", "--tail", str(_NUM_LAST), container], ASK_LIMIT_S)
    lines = f"{done.stdout}\n{done.stderr}".splitlines()
    return tuple(line.rstrip()[:200] for line in lines if line.strip())[-_NUM_LAST:]


def run_shown(argv: Sequence[str], *, is_output: bool = False) -> None:
    """Runs a program to its end, showing its output.

    Args:
        argv: the program.
        is_output: its output is the result, and goes to stdout; else to stderr.

    Raises:
        RunFailed: docker-failed.
    """
    because = command.run_shown(argv, is_output=is_output)
    if because is not None:
        raise _failed(argv, because)


def _must(argv: Sequence[str], system: System) -> Completed:
    done = system.run(argv, ASK_LIMIT_S)
    if done.exit_code != 0:
        raise _failed(argv, done.reason or _error_text(done))
    return done


def _failed(argv: Sequence[str], because: str) -> RunFailed:
    words = list(argv)
    if "--env-file" in words:
        # The folder was already named; what follows shows what was tried.
        first, last = words.index("--project-directory"), words.index("--env-file") + 2
        words = words[:first] + words[last:]
    return RunFailed(
        "docker-failed",
        f"`{' '.join(words[:6])}` failed.",
        because=because,
        fix="check the files: flatout cluster check; check Docker: flatout doctor",
    )


def _error_text(done: Completed) -> str:
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return "; ".join(lines[-3:])[:400] or f"it ended with exit code {done.exit_code}"


def _refuse_old(version: str) -> None:
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if release[0] == 1 and release < _FIRST_V1:
        raise UsageError(
            "compose-missing",
            f"Docker Compose {version} is too old.",
            because="it supports neither profiles nor GPUs; 1.28 is the first version that does",
            fix="install docker-compose-plugin (Docker's repository) or docker-compose-v2 (Ubuntu)",
        )
