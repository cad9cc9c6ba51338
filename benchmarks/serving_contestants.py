"""The servers that serving.py and the campaign serving_soak.py start: flatout's, and its peers'."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import serving_text
from support import http_load

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
PEERS = HERE / "serving_peers"
GENERATOR = HERE.parent / "tests" / "support" / "http_load.py"
START_LIMIT_S = 120.0
NUM_BODIES = 64


@dataclass(frozen=True)
class Work:
    """A folder for runs and outputs, and the environment of flatout's processes there."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables for flatout."""
        python_path = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))
        return {
            **os.environ, "FLATOUT_STATE": str(self.folder / "state"), "PYTHONPATH": python_path
        }  # fmt: skip

    def flatout(self, *words: str) -> str:
        """Runs a command of flatout; gives its output.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            [sys.executable, "-P", "-m", "flatout", *words],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"flatout {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout


@dataclass(frozen=True)
class Contestant:
    """A server. words: starts it, `{port}` and `{settings}` filled in. settings: to choose from."""

    name: str
    words: tuple[str, ...]
    settings: tuple[dict[str, Any], ...] = ({},)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def train(work: Work, model: str, run: str, seed: int = 0) -> None:
    """Trains a model for a moment, unless that run is there."""
    if (work.folder / "state" / "runs" / run).is_dir():
        return
    what = str(HERE / "serving_text.py") if model == "text" else "mnist"
    length = [] if model == "text" else ["-s", "samples=6000", "--epochs", "1"]
    work.flatout(
        "train", what, *length, "--name", run, "--seed", str(seed), "--tune", "off", "--device",
        "cpu",
    )  # fmt: skip


def sample_inputs(model: str, num: int = NUM_BODIES) -> list[Any]:
    """Inputs of the test data: texts, or pictures as nested lists of numbers from 0 to 1."""
    if model == "text":
        return list(serving_text.example_texts(num, seed=3)[0])
    folder = Path(os.environ.get("FLATOUT_DATA", "")) / "mnist"
    if not folder.is_dir():
        from flatout.engine import dataset

        folder = dataset("mnist")
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        content = file.read()[16 : 16 + num * 784]
    pixels = [round(byte / 255, 3) for byte in content]
    return [
        [pixels[at + row * 28 : at + row * 28 + 28] for row in range(28)]
        for at in range(0, num * 784, 784)
    ]


def request_bodies(inputs: Sequence[Any]) -> list[str]:
    """One body for each input."""
    return [json.dumps({"inputs": [one]}, separators=(",", ":")) for one in inputs]


def free_port() -> int:
    """A port that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def post(port: int, body: str, timeout_s: float = 30.0) -> tuple[int, dict[str, str], bytes]:
    """Sends one request; status, headers by lower-case name, and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def rows_of(port: int, bodies: Sequence[str]) -> list[dict[str, Any]]:
    """The answer to each body, asked one after the other.

    Raises:
        RuntimeError: a status other than 200.
    """
    rows = []
    for body in bodies:
        status, _, content = post(port, body)
        if status != 200:
            raise RuntimeError(f"HTTP status {status}: {content[:300]!r}")
        rows.append(http_load.first_row(content))
    return rows


@contextlib.contextmanager
def serving(
    contestant: Contestant, settings: dict[str, Any], body: str, log: Path
) -> Iterator[tuple[int, psutil.Process]]:
    """A running server that has answered once; gives its port and process.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    words = [
        word.replace("{port}", str(port)).replace("{settings}", json.dumps(settings))
        for word in contestant.words
    ]
    with open(log, "ab") as file:
        process = subprocess.Popen(
            words, env=contestant.environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait(process, port, body, log)
        yield port, psutil.Process(process.pid)
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], port: int, body: str, log: Path) -> None:
    until_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, http.client.HTTPException):
            if post(port, body)[0] == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"the server does not start: {log.read_text(errors='replace')[-1500:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a server with all that it has started."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for one in [*started, *([psutil.Process(process.pid)] if process.poll() is None else [])]:
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait(20)


def load(job: http_load.Job) -> http_load.LoadResult:
    """Sends requests from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", str(GENERATOR)], input=msgspec.json.encode(job),
        capture_output=True, check=True,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=http_load.LoadResult)
