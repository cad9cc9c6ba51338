"""The Docker engine: one that responds, or Debian's own, installed and started here.

Also builds a Debian image from the packages of this machine's archive. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from checkout import CACHE
from progress import Problem, say

SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates")
# The host's apt settings that containers need to reach the same archive.
_APT_SETTINGS = (
    "Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::http::Proxy",
    "Acquire::https::Proxy",
)  # fmt: skip
_START_S = 60.0
_INSTALL_S = 600.0
# Another process may first install the engine and build a Debian image.
_OTHERS_S = 2400.0
_SAID_EVERY_S = 10.0


def find_engine() -> str:
    """The client of an engine that responds; one is installed and started if possible.

    Raises:
        Problem: there is none; gives the reason.
    """
    with one_at_a_time():
        program = _answering()
        if program is None:
            if not is_debian_root():
                raise Problem(
                    "no container engine responds.",
                    because="it is installed automatically only for root on Debian or Ubuntu",
                    fix="start Docker, then run this again",
                )
            if shutil.which("dockerd") is None:
                _apt_install("docker.io", "docker-compose")
            program = _answering() or _start_engine()
    return program


def bootstrap(folder: Path) -> Path:
    """An archive of a small Debian with Python and certificates, built in a folder.

    Raises:
        Problem: it cannot be made.
    """
    if shutil.which("debootstrap") is None:
        _apt_install("debootstrap")
    root = folder / "root"
    words = ["--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    words += _archive()
    done = run(["debootstrap", *words], 1200.0)
    if done.returncode != 0:
        raise Problem(
            "debootstrap failed.",
            because="\n".join(done.stdout.strip().splitlines()[-3:]),
            fix=f"check that Debian's archive can be reached; or docker pull debian:{SUITE}-slim",
        )
    (root / "etc/apt/apt.conf.d/99host").write_text(_apt_settings(), encoding="utf-8")
    archive = folder / "root.tar"
    left_out = "--exclude=./var/cache/apt/archives/*.deb"
    must(["tar", "-C", str(root), left_out, "-cf", str(archive), "."])
    return archive


def _start_engine() -> str:
    log = CACHE / "dockerd.log"
    CACHE.mkdir(exist_ok=True)
    say("docker", f"starting dockerd ({log})")
    with open(log, "ab") as file:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        program = _answering()
        if program is not None:
            say("docker", f"running; stop it with: kill {process.pid}")
            return program
        time.sleep(0.5)
    process.terminate()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    raise Problem("dockerd does not start here.", because="\n".join(lines[-3:]), fix=f"see {log}")


def _answering() -> str | None:
    """The client whose engine responds. The first one on the path may be something else."""
    for program in dict.fromkeys(filter(None, [shutil.which("docker"), "/usr/bin/docker"])):
        try:
            done = run([program, "version", "--format", "{{.Server.Version}}"], 20.0)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip()[:1].isdigit():
            return program
    return None


def is_debian_root() -> bool:
    is_root = sys.platform != "win32" and os.geteuid() == 0
    return is_root and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def _apt_install(*packages: str) -> None:
    say("docker", f"installing {', '.join(packages)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "--quiet"], _INSTALL_S, quiet)
    argv = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    must(argv, _INSTALL_S, quiet)


def _archive() -> list[str]:
    """The archive of this machine's own packages, if it is a Debian archive.

    Otherwise debootstrap uses its default.
    """
    reported = run(["apt-cache", "policy", "base-files"], 60.0).stdout.split()
    found = [word for word in reported if word.startswith("http") and word.endswith("/debian")]
    return found[:1]


def _apt_settings() -> str:
    words = ["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', *_APT_SETTINGS]
    return run(words, 60.0).stdout


@contextlib.contextmanager
def one_at_a_time(folder: Path | None = None) -> Iterator[None]:
    """Lets one process at a time install, start or build what all of them use.

    Args:
        folder: of the lock. By default root uses one lock for all checkouts on this machine, since
            they share what root installs, in a folder where only root can create files.

    Raises:
        Problem: the others did not finish.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    folder = folder or (Path("/run") if is_debian_root() else CACHE)
    folder.mkdir(exist_ok=True)
    began_s, said_s = time.monotonic(), 0.0
    with open(folder / "flatout-containers.lock", "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                said_s = _wait_for_others(time.monotonic() - began_s, said_s)
        yield


def _wait_for_others(waited_s: float, said_s: float) -> float:
    """Waits briefly, reports it now and then, and returns the time of the last report."""
    if waited_s > _OTHERS_S:
        raise Problem(
            "another process holds the lock for preparing containers.",
            because=f"it has held it for {waited_s:.0f} s",
            fix="end it, then run this again",
        )
    if waited_s >= said_s + _SAID_EVERY_S:
        said_s = waited_s
        say("docker", f"waiting for another process that prepares containers ({waited_s:.0f} s)")
    time.sleep(0.1)
    return said_s


def run(
    argv: Sequence[str], limit_s: float = 300.0, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8",
        errors="replace", timeout=limit_s, check=False, env={**os.environ, **(variables or {})},
    )  # fmt: skip


def must(
    argv: Sequence[str], limit_s: float = 300.0, variables: Mapping[str, str] | None = None
) -> None:
    done = run(argv, limit_s, variables)
    if done.returncode != 0:
        because = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise Problem(f"{argv[0]} failed.", because=because, fix=f"try: {' '.join(argv)}")
