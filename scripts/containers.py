"""Docker for tests: an engine, a plain Debian with Python, and containers that are fresh machines.

An engine that responds is used. If there is none, root on Debian or Ubuntu installs the
distribution's and starts it; it stays, and so does the base image. Everything else carries the
label of the process that made it and is removed with it; leftovers of a killed process are removed
by the next one.

As a program it prepares engine and base image; with `--clean` it removes everything with the label
or name of tests and campaigns, including the images that stay. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docker_engine import (
    PACKAGES,
    SUITE,
    bootstrap,
    find_engine,
    is_debian_root,
    one_at_a_time,
    run,
)
from progress import Problem, guarded, say

LABEL = "flatout.test"
# The label of an image that stays, so that `--clean` also finds unnamed ones.
KEPT = f"{LABEL}=kept"
BASE = "flatout-test-base:bookworm"
# Prefix of the names of all images and projects of tests and campaigns.
NAMES = "flatout-test"
_COMPOSE = "com.docker.compose.project"
_PUBLIC = f"debian:{SUITE}-slim"
_HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a container.

    memory: in Docker's notation ("512m"). disk: folders on separate file systems in memory, with
    their sizes ("200m"). network: `none`, `host`, or the name of one.
    """

    memory: str | None = None
    cpus: float | None = None
    disk: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"
    user: str | None = None

    def options(self) -> list[str]:
        """As arguments of `docker run`."""
        found = ["--network", self.network]
        found += ["--memory", self.memory] if self.memory else []
        found += ["--cpus", str(self.cpus)] if self.cpus else []
        found += ["--user", self.user] if self.user else []
        for folder, size in self.disk.items():
            found += ["--tmpfs", f"{folder}:exec,mode=1777,size={size}"]
        return found


class Container:
    """A container that runs until it is removed; programs are started in it one by one."""

    def __init__(self, docker: Docker, name: str) -> None:
        self._docker = docker
        self.name = name

    def run(
        self,
        *argv: str,
        user: str | None = None,
        variables: Mapping[str, str] | None = None,
        limit_s: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in it to completion, without input."""
        words = self._words(argv, user, variables)
        return self._docker.ask(*words, limit_s=limit_s)

    def start(
        self, *argv: str, user: str | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a program in it. Ending this process ends only the client: see kill."""
        return subprocess.Popen(
            [self._docker.program, *self._words(argv, user, variables)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace",
        )  # fmt: skip

    def put(self, source: Path, target: str) -> None:
        """Copies a file or a folder into it."""
        self._docker.must("cp", str(source), f"{self.name}:{target}")

    def get(self, source: str, target: Path) -> None:
        """Copies a file or a folder out of it."""
        self._docker.must("cp", f"{self.name}:{source}", str(target))

    def kill(self) -> None:
        """Kills everything that runs in it, like a power cut; its files stay."""
        self._docker.must("kill", self.name)

    def boot(self) -> None:
        """Starts it after a kill."""
        self._docker.must("start", self.name)

    def connect(self, network: str) -> None:
        """Connects it to a network."""
        self._docker.must("network", "connect", network, self.name)

    def disconnect(self, network: str) -> None:
        """Disconnects it from a network; open connections stay open but receive nothing."""
        self._docker.must("network", "disconnect", network, self.name)

    def as_image(self) -> str:
        """The name of an image of its current files, which is removed with the rest."""
        tag = f"{self.name}-image"
        label = f"LABEL {LABEL}={self._docker.owner}"
        self._docker.must("commit", "--change", label, self.name, tag)
        return tag

    def remove(self) -> None:
        """Stops and removes it with its files."""
        self._docker.must("rm", "--force", "--volumes", self.name)

    def _words(
        self, argv: Sequence[str], user: str | None, variables: Mapping[str, str] | None
    ) -> list[str]:
        words = ["exec"]
        words += ["--user", user] if user else []
        for name, value in (variables or {}).items():
            words += ["--env", f"{name}={value}"]
        return [*words, self.name, *argv]


class Docker:
    """An engine that responds, and what this process creates in it.

    program: the client. owner: for the label; by default this process.
    """

    def __init__(self, program: str, owner: str | None = None) -> None:
        self.program = program
        self.owner = owner or f"{platform.node()}:{os.getpid()}"
        self._mine = f"{LABEL}={self.owner}"
        self._num_made = 0

    def ask(self, *words: str, limit_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Runs the client to completion."""
        return run([self.program, *words], limit_s)

    def must(self, *words: str, limit_s: float = 300.0) -> str:
        """The client's output.

        Raises:
            Problem: it failed.
        """
        done = self.ask(*words, limit_s=limit_s)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise Problem(
                f"docker {words[0]} failed.",
                because="\n".join(said.splitlines()[-15:]),
                fix=f"run it manually: docker {' '.join(words)}",
            )
        return done.stdout

    def base_image(self) -> str:
        """The name of an image of Debian with Python and certificates; built once, and kept.

        Raises:
            Problem: it can be neither built nor pulled.
        """
        with one_at_a_time():
            if not self.has(BASE):
                if self.has(_PUBLIC) or not is_debian_root():
                    _take_public_image(self)
                else:
                    _make_image(self)
        return BASE

    def build(
        self,
        dockerfile: str,
        *,
        context: Path | None = None,
        arguments: Mapping[str, str] | None = None,
        is_kept: bool = False,
    ) -> str:
        """The name of the image that a Dockerfile builds; builds use the host's network.

        Args:
            dockerfile: its text.
            context: the folder that it copies from. By default it holds `ca.pem`, the certificates
                that this machine trusts.
            arguments: of the build, in addition to the host's (see host_arguments); those that the
                text does not declare are left out.
            is_kept: keeps the image for the next process with the same text.
        """
        given = {**host_arguments(), **(arguments or {})}
        declared = {name: value for name, value in given.items() if f"ARG {name}" in dockerfile}
        digest = hashlib.sha256(f"{dockerfile}{sorted(declared.items())}".encode()).hexdigest()
        tag = f"flatout-test:{digest[:16]}" if is_kept else self._name("flatout-test")
        if is_kept and self.has(tag):
            return tag
        words = ["build", "--quiet", "--network", "host", "--tag", tag]
        # Images inherit labels from their base image, so one that stays has none.
        words += [] if is_kept else ["--label", self._mine]
        for name, value in declared.items():
            words += ["--build-arg", f"{name}={value}"]
        with tempfile.TemporaryDirectory(prefix="flatout-build-") as made:
            file = Path(made, "Dockerfile")
            file.write_text(dockerfile, encoding="utf-8")
            if context is None and _HOST_CERTIFICATES.exists():
                shutil.copyfile(_HOST_CERTIFICATES, Path(made, "ca.pem"))
            self.must(*words, "--file", str(file), str(context or made), limit_s=1200.0)
        return tag

    def container(
        self,
        image: str,
        *,
        limits: Limits | None = None,
        mounts: Mapping[Path, str] | None = None,
        variables: Mapping[str, str] | None = None,
        command: Sequence[str] = ("sleep", "infinity"),
    ) -> Container:
        """A running container.

        Args:
            image: its name.
            limits: its limits; by default without a network.
            mounts: read-only folders of this machine, by their path in the container.
            variables: environment variables.
            command: the main process, which keeps it running.
        """
        name = self._name("flatout-test")
        words = ["run", "--detach", "--init", "--name", name, "--hostname", name]
        words += ["--label", self._mine, *(limits or Limits()).options()]
        for folder, place in (mounts or {}).items():
            words += ["--volume", f"{folder}:{place}:ro"]
        for variable, value in (variables or {}).items():
            words += ["--env", f"{variable}={value}"]
        self.must(*words, image, *command)
        return Container(self, name)

    def network(self) -> str:
        """The name of a new network that connects only containers."""
        name = self._name("flatout-test")
        self.must("network", "create", "--internal", "--label", self._mine, name)
        return name

    def clean(self) -> None:
        """Removes what this process created, and leftovers of processes that have ended."""
        for label in {self._mine, *_left_over(self)}:
            remove(self, label)

    def _name(self, prefix: str) -> str:
        self._num_made += 1
        return f"{prefix}-{self.owner.rpartition(':')[2]}-{self._num_made}"

    def has(self, image: str) -> bool:
        """Whether an image of that name exists."""
        return self.ask("image", "inspect", image).returncode == 0


def find_docker() -> Docker:
    """An engine that responds; if there is none, it is installed and started if possible.

    Raises:
        Problem: there is none; gives the reason.
    """
    return Docker(find_engine())


def remove(docker: Docker, label: str) -> None:
    """Removes everything with the label."""
    removals = {
        "container": ["rm", "--force", "--volumes"],
        "network": ["rm"],
        "volume": ["rm", "--force"],
        "image": ["rm", "--force"],
    }
    for kind, removal in removals.items():
        found = _labelled(docker, kind, label)
        if found:
            docker.ask(kind, *removal, *found)


def _left_over(docker: Docker) -> set[str]:
    """Labels of processes on this machine that have ended."""
    found = set()
    for kind in ("container", "network", "volume", "image"):
        for one in _labelled(docker, kind, LABEL):
            place = "Labels" if kind in ("network", "volume") else "Config.Labels"
            form = f'{{{{index .{place} "{LABEL}"}}}}'
            owner = docker.ask(kind, "inspect", "--format", form, one).stdout.strip()
            host, _, number = owner.rpartition(":")
            if host == platform.node() and number.isdigit() and not _is_alive(int(number)):
                found.add(f"{LABEL}={owner}")
    return found


def _labelled(docker: Docker, kind: str, label: str) -> list[str]:
    every = ["--all"] if kind == "container" else []
    reported = docker.ask(kind, "ls", *every, "--quiet", "--filter", f"label={label}")
    return list(dict.fromkeys(reported.stdout.split()))


def _take_public_image(docker: Docker) -> None:
    say("docker", f"{BASE}, from {_PUBLIC}")
    text = (
        f"FROM {_PUBLIC}\nRUN apt-get update && apt-get install --yes --no-install-recommends "
        f"{' '.join(PACKAGES)} && rm -rf /var/lib/apt/lists/*\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text(text, encoding="utf-8")
        docker.must("build", "--quiet", "--network", "host", "--tag", BASE, folder, limit_s=1200.0)


def _make_image(docker: Docker) -> None:
    say("docker", f"{BASE}, by debootstrap")
    with tempfile.TemporaryDirectory(prefix="flatout-base-") as folder:
        archive = bootstrap(Path(folder))
        docker.must("import", str(archive), BASE)


def host_arguments() -> dict[str, str]:
    """Build arguments that let a build reach the package indexes that this machine uses."""
    names = (*_PROXIES, *(name.lower() for name in _PROXIES), *_PIP_SETTINGS)
    given = {name: os.environ[name] for name in names if os.environ.get(name)}
    return {**given, "CA_BUNDLE": "ca.pem"} if _HOST_CERTIFICATES.exists() else given


def _is_alive(number: int) -> bool:
    if sys.platform == "win32":
        return True  # There, signal 0 is Ctrl-C.
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def clean_all(docker: Docker) -> None:
    """Removes everything that tests created here, including what they keep, and nothing else.

    BuildKit's cache has no names: `docker builder prune` clears it, including that of other builds.
    """
    remove(docker, LABEL)
    for project in sorted(_projects(docker)):
        remove(docker, f"{_COMPOSE}={project}")
    named = docker.ask("image", "ls", "--quiet", "--filter", f"reference={NAMES}*")
    for image in dict.fromkeys(named.stdout.split()):
        docker.ask("image", "rm", "--force", image)


def _projects(docker: Docker) -> set[str]:
    """Compose projects of tests, found by name because they have no label."""
    found = set()
    for kind in ("container", "network", "volume"):
        every = ["--all"] if kind == "container" else []
        form = f'{{{{.Label "{_COMPOSE}"}}}}'
        reported = docker.ask(kind, "ls", *every, "--filter", f"label={_COMPOSE}", "--format", form)
        found |= {name for name in reported.stdout.split() if name.startswith(f"{NAMES}-")}
    return found


def main(arguments: list[str]) -> int:
    """Prepares engine and base image, or cleans up."""
    docker = find_docker()
    if "--clean" in arguments:
        clean_all(docker)
        return 0
    say("docker", f"{docker.program} · {docker.base_image()}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
