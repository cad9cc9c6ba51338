"""`flatout monitor` as a process: how it begins, what it refuses, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy_machine import wait_until
from support.free_port import free_port

from flatout.schema.run_lines import Started
from flatout.system.atomic_files import Lines
from flatout.system.store.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
IS_WINDOWS = sys.platform == "win32"


@contextlib.contextmanager
def monitoring(cli: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A monitor that has begun to sample."""
    process = cli.start("monitor", "-i", "0.2", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def metrics(port: int) -> str:
    """What the exporter gives, as soon as it has a sample."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            if text:
                return str(text)
        time.sleep(0.05)
    raise AssertionError("the exporter gives no metrics")


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    """Exit code and outputs after a signal."""
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has no signals to be sent")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(cli: Any, number: int) -> None:
    port = free_port()
    with monitoring(cli, "--prometheus", f":{port}", "--json") as process:
        assert "flatout_host_memory_size_bytes" in metrics(port)
        code, stdout, stderr = ended(process, number)
    assert code == 0, stderr
    document = json.loads(stdout)
    assert document["num_samples"] >= 1
    assert document["metrics"] == f"http://127.0.0.1:{port}/metrics"
    files = list((cli.state / "monitor").glob("*.jsonl"))
    assert len(files) == 1
    assert json.loads(files[0].read_text().splitlines()[0])["host"]["memory_bytes"] > 0


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has no signals to be sent")
def test_a_demo_has_dcgm_names_and_stores_nothing(cli: Any) -> None:
    port = free_port()
    with monitoring(cli, "--demo", "--dcgm-names", "--prometheus", f":{port}") as process:
        assert "DCGM_FI_DEV_GPU_UTIL{" in metrics(port)
        code, stdout, _ = ended(process, signal.SIGTERM)
    assert code == 0
    assert "not stored (--demo)" in stdout
    assert not (cli.state / "monitor").exists()


def test_a_port_in_use_is_refused_with_another_one(cli: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = cli.run("monitor", "--demo", "--prometheus", f":{port}")
    assert done.returncode == 2
    assert f"port {port} is already in use" in done.stderr
    assert f"--prometheus :{port + 1}" in done.stderr


def test_a_second_monitor_is_refused_and_a_demo_is_not(cli: Any) -> None:
    port = free_port()
    with monitoring(cli, "--prometheus", f":{port}"):
        metrics(port)
        done = cli.run("monitor")
        assert (done.returncode, "already running" in done.stderr) == (2, True)
        other = free_port()
        with monitoring(cli, "--demo", "--prometheus", f":{other}"):
            assert "flatout_gpu_power_watts" in metrics(other)


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has no signals to be sent")
def test_a_dead_worker_is_an_alarm_and_a_dead_webhook_holds_up_nothing(cli: Any) -> None:
    folder = RunFolder(cli.runs / "mine-0001")
    folder.path.mkdir(parents=True)
    folder.header.write_text("{}")
    line = Started(
        at=time.time(), step=0, pid=os.getpid(), num_steps=None, num_epochs=1, steps_per_epoch=1,
        num_parameters=1, num_samples=1,
    )  # fmt: skip
    Lines(folder.events).append(line)
    lock = folder.lock()
    assert lock.acquire()
    port, closed = free_port(), free_port()
    hook = f"http://127.0.0.1:{closed}/"
    with monitoring(cli, "--webhook", hook, "--prometheus", f":{port}", "--json") as process:
        wait_until(lambda: _num_samples(metrics(port)) > 2)
        lock.release()
        wait_until(lambda: 'flatout_alarms{rule="worker-died"} 1.0' in metrics(port))
        # The webhook is tried again after two seconds.
        time.sleep(3.0)
        before = _num_samples(metrics(port))
        wait_until(lambda: _num_samples(metrics(port)) > before)
        code, stdout, stderr = ended(process, signal.SIGTERM)
    assert code == 0
    assert [alarm["subject"] for alarm in json.loads(stdout)["alarms"]] == ["run mine-0001"]
    kept = (cli.state / "monitor" / "alarms.jsonl").read_text().splitlines()
    assert [json.loads(line)["finding"]["rule"] for line in kept] == ["worker-died"]
    assert stderr.count("an alarm was not delivered to the webhook") == 1


def _num_samples(text: str) -> float:
    line = next(one for one in text.splitlines() if one.startswith("flatout_monitor_samples_total"))
    return float(line.split()[1])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--prometheus", "nowhere"), "bad-address"),
        (("--prometheus", "two..dots:9400"), "bad-address"),
        (("--webhook", "nowhere"), "bad-webhook"),
        (("--keep", "much"), "bad-size"),
        (("-i", "0"), "wrong-usage"),
        (("--days", "0"), "wrong-usage"),
    ],
)
def test_bad_input_is_refused(cli: Any, arguments: tuple[str, ...], rule: str) -> None:
    done = cli.run("monitor", *arguments)
    assert done.returncode == 2
    assert f"explain {rule}" in done.stderr


def test_dcgm_names_without_an_exporter_are_warned_of(cli: Any) -> None:
    done = cli.run("monitor", "--demo", "--dcgm-names", "--webhook", "nowhere")
    assert "`--dcgm-names` has no effect" in done.stderr


def test_limits_of_files_in_a_demo_are_warned_of(cli: Any) -> None:
    done = cli.run("monitor", "--demo", "--days", "3", "--keep", "1GiB", "--webhook", "nowhere")
    assert "`--days` has no effect" in done.stderr
    assert "`--keep` has no effect" in done.stderr
    done = cli.run("monitor", "--demo", "--webhook", "nowhere")
    assert "has no effect" not in done.stderr


def test_grafana_writes_a_folder_and_says_what_is_next(cli: Any) -> None:
    done = cli.run("monitor", "grafana")
    assert done.returncode == 0, done.stderr
    assert (cli.folder / "flatout-grafana" / "compose.yaml").is_file()
    assert "monitor --prometheus :9400" in done.stdout
    again = cli.run("monitor", "grafana", "--json")
    assert again.returncode == 2
    assert json.loads(again.stdout)["error"]["rule"] == "file-exists"


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize("columns", [20, 80])
def test_the_live_line_keeps_to_one_line(cli: Any, columns: int) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    start = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\nimport flatout.__main__ as m"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"{start}; m.main()", "monitor", "--demo", "-i", "0.2"],
        env={**cli.environment(), "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs,
        stderr=theirs, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    text = b""
    try:
        until = time.monotonic() + 120
        while text.count(b"GPU 0") < 3 and time.monotonic() < until:
            text += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                text += part
        assert process.wait(120) == 0
    finally:
        process.kill()
        os.close(ours)
    # Drawn over, not below: nothing moves up more than a line.
    assert b"\x1b[2A" not in text
    assert text.count(b"GPU 0") >= 3
