"""`flatout serve` of trained runs as a process of its own, and how it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 180


class Place:
    """A state folder with runs of `digits`, `first` and `second`. variables: of its commands."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "FLATOUT_STATE": str(folder / "state"), **variables}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "flatout", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.env, text=True, capture_output=True,
            timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def trained_place(folder: Path) -> Place:
    """The place with its runs."""
    place = Place(folder)
    for name, seed in (("first", "0"), ("second", "1")):
        done = place.run("train", "digits", "--epochs", "1", "--name", name, "--seed", seed)
        assert done.returncode == 0, done.stderr
    return place


class Served:
    """A running server: its events, and how it is asked."""

    def __init__(self, place: Place, *words: str) -> None:
        self.place = place
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            place.command("serve", *words, "--port", "0", "--json"), cwd=place.folder,
            env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = self.wait_for("ready")
        self.url: str = self.ready["url"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            found = [one for one in self.events if one["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None or event == "stopped", self.printed()
            time.sleep(0.02)
        raise AssertionError(f"no event {event}: {self.events}")

    def printed(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def predict(self, value: Any = None, **headers: str) -> tuple[int, Any]:
        """The status and the document of a prediction for the example, or another value."""
        given = {"input": self.ready["model"]["example"]} if value is None else value
        body = json.dumps(given).encode()
        headers |= {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/predict", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


@contextmanager
def servers(place: Place) -> Iterator[Callable[..., Served]]:
    """Starts servers, which end with the block at the latest."""
    started: list[Served] = []

    def start(*words: str) -> Served:
        started.append(Served(place, *words))
        return started[-1]

    try:
        yield start
    finally:
        for served in started:
            if served.process.poll() is None:
                served.process.kill()
                served.process.wait()
