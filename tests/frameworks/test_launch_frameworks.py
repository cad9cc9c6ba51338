"""The examples for TensorFlow and Paddle on two nodes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240


@pytest.mark.parametrize(
    ("framework", "script"),
    [("tensorflow", "tensorflow_workers.py"), ("paddle", "paddle_parallel.py")],
)
def test_example_trains_on_two_nodes(
    framework: str, script: str, tmp_path: Path, interpreter_with: Callable[[str], str]
) -> None:
    python = interpreter_with(framework)
    done = subprocess.run(
        [
            sys.executable, "-m", "flatout", "launch", "--framework", framework, "--nodes", "2",
            "--python", python, "--logs", str(tmp_path / "logs"), "--limit", str(LIMIT_S - 20),
            str(ROOT / "examples" / "launch" / script),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    reported = re.findall(r"node (\d)  \w+ (\d) of 2 on \S+: loss (0\.\d+)", done.stdout)
    assert sorted((node, rank) for node, rank, _ in reported) == [("0", "0"), ("1", "1")]
    # Each had other batches: of models that were trained apart, no two would have the same loss.
    losses = {loss for _, _, loss in reported}
    assert len(losses) == 1 and 0 < float(losses.pop()) < 0.1


TOLD = "import os; print('I am', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
FAILS = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('lost'); time.sleep(600)"


@pytest.fixture
def ray_head(
    interpreter_with: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An interpreter with Ray, whose cluster of this machine runs during the test."""
    python = interpreter_with("ray")
    ray = [python, "-m", "ray.scripts.scripts"]
    begin = [*ray, "start", "--head", "--num-cpus=2", "--port=23790", "--include-dashboard=false"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(begin, env=environment, check=True, timeout=120, capture_output=True)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:23790")
    try:
        yield python
    finally:
        # Ends what belongs to this head alone: its port names it.
        for process in psutil.process_iter(["cmdline"]):
            if "23790" in " ".join(process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def on_ray(python: str, script: Path, nodes: int) -> list[str]:
    return [
        sys.executable, "-m", "flatout", "launch", "--framework", "torch", "--nodes", str(nodes),
        "--on", "ray", "--python", python, "--limit", "100", str(script),
    ]  # fmt: skip


def launch_on_ray(python: str, script: Path, nodes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        on_ray(python, script, nodes),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def running(script: Path) -> list[psutil.Process]:
    """The nodes that run it: those whose command begins with the interpreter and the script."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[1:2] == [str(script)]
    ]


def test_a_head_that_is_gone_is_reported_soon(
    interpreter_with: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOLD)
    # Port 1 is nobody's.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    began_s = time.monotonic()
    done = launch_on_ray(interpreter_with("ray"), script, 2)
    assert done.returncode == 1 and "explain scheduler-not-reachable" in done.stderr, done.stderr
    assert time.monotonic() - began_s < 60


def test_ray_places_all_nodes_or_none(ray_head: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOLD)
    done = launch_on_ray(ray_head, script, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["node 0  I am 0 of 2", "node 1  I am 1 of 2"]
    script.write_text(FAILS)
    done = launch_on_ray(ray_head, script, 2)
    assert done.returncode == 1
    assert "node 1 ended with exit code 1; the others were stopped." in done.stderr
    assert "because: lost" in done.stderr
    assert not running(script)
    # Whoever has started them is killed: so are they.
    script.write_text("import time; time.sleep(600)")
    process = subprocess.Popen(
        on_ray(ray_head, script, 2),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    until_s = time.monotonic() + 90
    while len(running(script)) < 2 and time.monotonic() < until_s:
        time.sleep(0.1)
    assert len(running(script)) == 2
    process.kill()
    process.wait()
    until_s = time.monotonic() + 60
    while running(script) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not running(script)
