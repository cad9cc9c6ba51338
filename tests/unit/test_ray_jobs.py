"""Training handed to Ray's Jobs API: a server that answers as Ray's does, and runs the job here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flatout import __version__
from flatout.cluster import ray_jobs
from flatout.cluster.ray_jobs import RayHead
from flatout.errors import RunFailed, UsageError
from flatout.schema.placement import LAUNCHER_LOST, Placement, parse_placement

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs are lines of sh")


class Head:
    """What a head knows: jobs as processes. python: runs them in place of the cluster's.

    code: what it answers whoever asks after a job; None for the truth. num_lost: of the next jobs,
    how many it never hears of; late_s: for how long it takes one without a word.
    """

    def __init__(self, python: str) -> None:
        self.python = python
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.ids: list[str] = []
        self.entrypoints: list[str] = []
        self.is_stopped = False
        self.takes_jobs = True
        self.num_lost = 0
        self.late_s = 0.0
        self.is_blind = False
        self.code: int | None = None
        self.token: str | None = None

    def submit(self, id: str, entrypoint: str) -> dict[str, Any]:
        self.entrypoints.append(entrypoint)
        if self.is_blind:
            entrypoint = entrypoint.replace("/runs/", "/not/here/")
        launched = entrypoint.replace("engine.launch", "engine.training.worker")
        words = re.sub(r" --(on|flatout) \S+", "", launched)
        line = words.replace("python3", self.python, 1)
        # The fake engine, not that of this checkout.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        job = subprocess.Popen(["sh", "-c", line], env=kept, start_new_session=True)
        self.jobs.append(job)
        self.ids.append(id)
        return {"submission_id": id}

    def details(self, id: str) -> dict[str, Any]:
        code = self.jobs[self.ids.index(id)].poll()
        if code is None:
            return {"status": "RUNNING", "driver_exit_code": None}
        if self.is_stopped:
            return {"status": "STOPPED", "driver_exit_code": None}
        status = "SUCCEEDED" if code == 0 else "FAILED"
        return {"status": status, "driver_exit_code": code, "message": f"exit code {code}"}

    def stop(self, id: str) -> dict[str, Any]:
        self.is_stopped = True
        self.jobs[self.ids.index(id)].kill()
        return {"stopped": True}


def handler_of(head: Head) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.is_refused():
                return
            if self.path == "/api/version":
                self.tell({"ray_version": "2.60.0"})
            elif head.code is not None or self.path.rsplit("/", 1)[-1] not in head.ids:
                self.send_error(head.code or 404)
            else:
                self.tell(head.details(self.path.rsplit("/", 1)[-1]))

        def is_refused(self) -> bool:
            if head.token in (None, self.headers.get("Authorization", "").removeprefix("Bearer ")):
                return False
            self.send_error(403 if "Authorization" in self.headers else 401)
            return True

        def do_POST(self) -> None:
            if self.is_refused():
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not head.takes_jobs or head.num_lost:
                head.num_lost = max(0, head.num_lost - 1)
                self.send_error(500)
            elif self.path.endswith("/stop"):
                self.tell(head.stop(self.path.split("/")[-2]))
            else:
                reported = head.submit(body["submission_id"], body["entrypoint"])
                time.sleep(head.late_s)
                self.tell(reported)

        def tell(self, document: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


@pytest.fixture
def head(fake_python: str) -> Iterator[tuple[Head, str]]:
    """A head, and its address."""
    head = Head(fake_python)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(head))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield head, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        for job in head.jobs:
            job.kill()
            job.wait()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ray", Placement(launcher="ray", num_ranks=0)),
        ("ray:4", Placement(launcher="ray", num_ranks=4)),
        ("cluster", Placement(launcher="ray", num_ranks=0, place="cluster")),
        ("cluster:2", Placement(launcher="ray", num_ranks=2, place="cluster")),
        ("http://head:8265", Placement(launcher="ray", num_ranks=0, place="http://head:8265")),
        ("http://head:8265#2", Placement(launcher="ray", num_ranks=2, place="http://head:8265")),
    ],
)
def test_places_are_read(text: str, wanted: Placement) -> None:
    assert parse_placement(text) == wanted
    # The process that starts the ranks reads what it is told back.
    assert parse_placement(str(wanted)).num_ranks == wanted.num_ranks


@pytest.mark.parametrize(
    "text", ["rya", "ray:", "ray:0", "cluster:x", "local", "http://head:8265#two", "torchrun:0"]
)
def test_places_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as reported:
        parse_placement(text)
    assert reported.value.rule == "bad-placement"


def test_train_by_a_job_tells_the_same_as_here(cli: Any, head: tuple[Head, str]) -> None:
    ray, address = head
    done = cli.run("train", cli.experiment, "--on", f"{address}#2", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    assert run["status"] == "finished"
    (entrypoint,) = ray.entrypoints
    assert "--on ray:2" in entrypoint and entrypoint.endswith("worker.log 2>&1"), entrypoint


def test_a_job_is_stopped_and_resumed_through_the_runs_folder(
    cli: Any, head: tuple[Head, str]
) -> None:
    ray, address = head
    slow = ["-s", "steps=2000", "-s", "pause=0.02"]
    process = cli.start("train", cli.experiment, "--on", address, *slow)
    metrics = cli.runs / "mine-0001" / "metrics.jsonl"
    end = time.monotonic() + 120
    while not (metrics.exists() and '"step": 3' in metrics.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert json.loads(cli.run("show", "last", "--json").stdout)["run"]["status"] == "stopped"
    assert not ray.is_stopped, "it was asked, not killed"
    again = cli.run("train", "--resume", "last", "--on", address, "--epochs", "90", "--json")
    assert len(ray.entrypoints) == 2 and "--change" in ray.entrypoints[1], again.stderr


def test_a_job_that_fails_is_reported_with_what_ray_says(
    cli: Any, head: tuple[Head, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, address = head
    ray.python = "/no/such/python"
    done = cli.run("train", cli.experiment, "--on", address)
    assert done.returncode == 1, done.stderr
    assert "worker-died" in done.stderr and "Ray: exit code 127" in done.stderr


def test_a_job_is_killed_by_ray(head: tuple[Head, str], tmp_path: Path) -> None:
    ray, address = head
    ray.python = "sleep 60; echo"
    log = tmp_path / "worker.log"
    job = ray_jobs.submit(RayHead(address=address), ["python3"], str(log), log)
    assert job.is_running() and job.exit_code() is None
    job.kill()
    assert not job.is_running() and job.exit_code() == -15


def test_a_head_that_stumbles_is_asked_again_and_one_that_knows_no_job_has_lost_it(
    head: tuple[Head, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "_POLL_EVERY_S", 0.0)
    ray, address = head
    ray.python = "sleep 60; echo"
    log = tmp_path / "worker.log"
    job = ray_jobs.submit(RayHead(address=address), ["python3"], str(log), log)
    for ray.code in (500, 503, 404):
        assert job.is_running(), "one wrong answer is no end"
    ray.code = None
    assert job.is_running()
    # It was killed and started again.
    ray.code = 404
    assert any(not job.is_running() for _ in range(20))
    assert job.exit_code() == LAUNCHER_LOST
    job.kill()


def test_a_run_that_the_head_does_not_see_is_reported(cli: Any, head: tuple[Head, str]) -> None:
    ray, address = head
    ray.is_blind = True
    done = cli.run("train", cli.experiment, "--on", address)
    assert done.returncode == 1 and "explain run-not-shared" in done.stderr, done.stderr


def test_what_a_job_is_reported(cli: Any, head: tuple[Head, str]) -> None:
    ray, address = head
    words = ["--on", address, "--python", "/no/such/python"]
    done = cli.run("train", cli.experiment, *words, FLATOUT_RANKS_LIMIT_S="60")
    assert done.returncode == 0, done.stderr
    assert "`--python` has no effect" in done.stderr and "option-without-effect" in done.stderr
    (entrypoint,) = ray.entrypoints
    assert "env -u OMP_NUM_THREADS FLATOUT_RANKS_LIMIT_S=60 python3" in entrypoint
    assert f"--flatout {__version__}" in entrypoint


def test_a_job_that_is_not_taken_leaves_no_run(cli: Any, head: tuple[Head, str]) -> None:
    ray, address = head
    ray.takes_jobs = False
    done = cli.run("train", cli.experiment, "--on", address)
    assert done.returncode == 1 and "explain ray-not-answering" in done.stderr
    assert not any(cli.runs.iterdir())


def test_a_job_is_taken_once_by_a_head_that_is_busy(
    head: tuple[Head, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, address = head
    ray.python = "sleep 60; echo"
    where, log = RayHead(address=address), tmp_path / "worker.log"
    # It never hears of the first.
    ray.num_lost = 1
    first = ray_jobs.submit(where, ["python3"], str(log), log)
    assert ray.ids == [first.id]
    # It takes the second, and answers too late.
    monkeypatch.setattr(ray_jobs, "_LIMIT_S", 0.3)
    ray.late_s = 1.0
    second = ray_jobs.submit(where, ["python3"], str(log), log)
    assert ray.ids == [first.id, second.id] and second.is_running()


def test_a_head_that_goes_is_reported_from_a_job_that_fails(
    head: tuple[Head, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "_POLL_EVERY_S", 0.0)
    ray, address = head
    ray.python = "sleep 60; echo"
    where, log = RayHead(address=address), tmp_path / "log"
    job = ray_jobs.submit(where, ["python3"], str(log), log)
    assert job.is_running()
    # Nobody listens there any more.
    job.head = RayHead(address="http://127.0.0.1:1")
    for _ in range(20):
        job.is_running()
    assert not job.is_running() and job.exit_code() == LAUNCHER_LOST


def test_a_token_is_taken_from_where_ray_has_it(
    cli: Any, head: tuple[Head, str], tmp_path: Path
) -> None:
    ray, address = head
    ray.token = "first"
    refused = cli.run("train", cli.experiment, "--on", address, RAY_AUTH_MODE="disabled")
    assert refused.returncode == 2 and "explain ray-token-refused" in refused.stderr
    (tmp_path / "token").write_text("first\n")
    kept = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    done = cli.run("train", cli.experiment, "--on", address, "--json", **kept)
    assert done.returncode == 0 and len(ray.entrypoints) == 1, done.stderr
    other = cli.run("train", cli.experiment, "--on", address, RAY_AUTH_TOKEN="second", **kept)
    assert other.returncode == 2 and "rejects this one" in other.stderr
    # Nobody is to read it in a message.
    assert "first" not in repr(RayHead(address=address, token="first"))


def test_no_ray_is_reported_with_the_way() -> None:
    with pytest.raises(RunFailed, match="Ray does not answer at http://127.0.0.1:1") as reported:
        ray_jobs.version(RayHead(address="http://127.0.0.1:1"))
    assert "flatout cluster up" in reported.value.fix


@pytest.mark.parametrize("text", ["head:8265", "ftp://head", "http://", "http://head:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the address of Ray's dashboard"):
        ray_jobs.check_address(text)


def test_cluster_that_is_not_there_is_reported(cli: Any) -> None:
    done = cli.run("train", cli.experiment, "--on", "cluster")
    assert done.returncode == 2 and "flatout cluster init" in done.stderr
    assert not cli.runs.exists() or not any(cli.runs.iterdir()), "nothing was made"
