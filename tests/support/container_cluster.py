"""A cluster of containers, made as a user makes it, by the command line of this checkout.

For campaigns and tests: its image is built without a public image or an index of torch's builds,
from a Debian with Python and a wheel of the installed torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from containers import KEPT, NAMES, Docker

from flatout.cluster.compose import cluster_folder, docker
from flatout.cluster.compose.compose_file import HEADS
from flatout.cluster.files import open_folder
from flatout.system.host_system import LocalSystem

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# An image takes minutes where nothing of it is there yet; the next run finds its layers.
BUILD_LIMIT_S = 1800
WHEEL_LIMIT_S = 600


class ContainerCluster:
    """A head and two workers, with runs and data in one folder.

    Args:
        folder: contains the cluster's folder, runs and data.
        engine: `ray`, `dask` or `torchrun`.
        name: unique on this machine; `scripts/containers.py --clean` finds it by its prefix.
        settings: of `.env`, in addition to those that such an image needs.
        packages: in the image, in addition to torch and flatout's dependencies.
    """

    def __init__(
        self,
        folder: Path,
        engine: str,
        name: str,
        settings: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.project = f"{NAMES}-{name}"
        self.state = folder / "state"
        self.data = folder / "data"
        self._settings = settings or {}
        self._packages = packages

    def flatout(self, *words: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs the command line in the parent of the cluster's folder."""
        return subprocess.run(
            [sys.executable, "-m", "flatout", *words], cwd=self.folder, timeout=limit_s,
            env=self.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts the command line."""
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", *words], cwd=self.folder, env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """The environment variables of the command line."""
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "FLATOUT_STATE": str(self.state),
            "FLATOUT_DATA": str(self.data),
        }

    def reported(self, *words: str, limit_s: float = 300) -> Any:
        """The JSON output of a successful command."""
        return read_reported(self.flatout(*words, "--json", limit_s=limit_s))

    def make(self, base_image: str) -> None:
        """Writes the files, for an image that can be built on this machine."""
        version = metadata.version("torch").partition("+")[0]
        packages = (f"torch=={version}+cpu", *self._packages)
        wanted = [word for package in packages for word in ("--with", package)]
        self.data.mkdir(exist_ok=True)
        self.reported("cluster", "init", "--engine", self.engine, "--gpus", "none",
                  "--base-image", base_image, *wanted)  # fmt: skip
        place = self.folder / "cluster"
        changes = {
            "COMPOSE_PROJECT_NAME": self.project,
            "CLUSTER_SYSTEM_PACKAGES": "",
            "CLUSTER_BUILD_NETWORK": "host",
            "CLUSTER_WORKER_MEMORY": "2560m",
            "CLUSTER_SHARED_MEMORY": "512m",
            "CLUSTER_OBJECT_STORE_BYTES": str(400 * 2**20),
            **self._settings,
        }
        if CERTIFICATES.exists():
            shutil.copy(CERTIFICATES, place / "certificates" / "ca.pem")
            changes["CLUSTER_CA_BUNDLE"] = "ca.pem"
        settings = place / ".env"
        lines = settings.read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in changes]
        own = [f"{name}={value}" for name, value in changes.items()]
        settings.write_text("\n".join([*kept, *own]) + "\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
             str(place / "wheels"), f"torch=={version}+cpu"], timeout=WHEEL_LIMIT_S, check=True,
        )  # fmt: skip

    def label(self, text: str) -> None:
        """Labels the image, and the one it is copied from, so that both are found and removed.

        At the end of both stages, so that existing layers are reused.
        """
        file = self.folder / "cluster" / "Dockerfile"
        built, last, used = file.read_text().rpartition("\nFROM base\n")
        file.write_text(f"{built}LABEL {text}\n{last}{used}LABEL {text}\n")

    def build(self) -> None:
        """Builds the image first, so that only the start of containers is measured."""
        cluster_folder.refresh_wheel(self.folder / "cluster")
        self.compose("build", "--quiet", HEADS[self.engine])

    def compose(self, *words: str) -> None:
        """Runs Compose on the cluster's files, as a person does."""
        folder = open_folder(str(self.folder / "cluster"))
        docker.run_shown(docker.find_compose(LocalSystem()).argv(folder.path, *words))

    def up(self) -> Any:
        """Starts all containers that are not running; returns the state."""
        return self.reported("cluster", "up", "--limit", "300", limit_s=BUILD_LIMIT_S)

    def container(self, service: str, number: int = 1) -> str:
        """The name of a container."""
        found = self.reported("cluster", "status")["containers"]
        (one,) = [each for each in found if (each["service"], each["number"]) == (service, number)]
        return str(one["name"])


def missing_for_clusters(docker: Docker) -> str | None:
    """What this machine lacks for such a cluster, for a test that is skipped."""
    has_v1 = shutil.which("docker-compose") is not None
    if not has_v1 and docker.ask("compose", "version").returncode != 0:
        return "needs Docker Compose, v2 or v1"
    if find_spec("torch") is None:
        return "needs torch: its version goes into the image"
    return None


def cluster_that_runs(engine: str, folder: Path, base_image: str) -> Iterator[ContainerCluster]:
    """For a fixture: a cluster whose containers are up; they are removed afterwards."""
    made = ContainerCluster(folder, engine, engine)
    try:
        made.make(base_image)
        made.label(KEPT)
        made.up()
        yield made
    finally:
        made.flatout("cluster", "down", "--volumes")


def read_reported(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON output of a successful command."""
    if done.returncode != 0:
        raise AssertionError(f"{done.args}\n{done.stdout}\n{done.stderr}"[-4000:])
    return json.loads(done.stdout)


def wait_until(
    is_so: Callable[[], bool], process: subprocess.Popen[str], *, limit_s: float = 180
) -> None:
    """Waits for a condition while a command runs."""
    end = time.monotonic() + limit_s
    while not is_so():
        if process.poll() is not None:
            raise AssertionError(f"the command has ended\n{process.communicate()[1]}"[-4000:])
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:.0f} s")
        time.sleep(0.1)
