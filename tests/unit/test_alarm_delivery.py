"""Alarms at a webhook and at a command: delivered, and never waited for."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy_machine import PATIENCE_S, least_s, wait_until

from flatout.errors import UsageError
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding
from flatout.system import alarm_delivery
from flatout.system.alarm_delivery import AlarmDelivery, check_webhook

ALARM = Alarm(
    at=1.0, state="raised", subject="GPU 0", host="here",
    finding=Finding(rule="gpu-xid", severity="error", problem="GPU 0 reported Xid error 79."),
)  # fmt: skip


@contextlib.contextmanager
def web_server(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers each POST so, and what it has received."""
    received: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            received.append(json.loads(self.rfile.read(size)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still to be sent at the end is waited for: the machine may be busy."""
    monkeypatch.setattr(alarm_delivery, "_CLOSE_LIMIT_S", PATIENCE_S)


def problems_of(delivery: AlarmDelivery) -> list[Finding]:
    """The problems of a delivery, as soon as there are any."""
    found: list[Finding] = []

    def has_any() -> bool:
        found.extend(delivery.problems())
        return bool(found)

    wait_until(has_any)
    return found


def test_a_webhook_receives_the_alarm() -> None:
    with web_server() as (url, received), AlarmDelivery(url) as delivery:
        delivery.send(ALARM)
        wait_until(lambda: received)
        assert delivery.problems() == []
    assert received[0]["text"] == "GPU 0: GPU 0 reported Xid error 79."
    assert received[0]["finding"]["rule"] == "gpu-xid"
    assert (received[0]["state"], received[0]["host"]) == ("raised", "here")


def test_a_webhook_with_an_error_is_tried_twice_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarm_delivery, "_PAUSE_S", 0.05)
    with web_server(503) as (url, received), AlarmDelivery(url) as delivery:
        delivery.send(ALARM)
        delivery.send(ALARM)
        wait_until(lambda: len(received) == 4)
        found = problems_of(delivery)
        time.sleep(0.2)
        assert delivery.problems() == []
    assert len(received) == 4
    assert [finding.rule for finding in found] == ["alarm-not-delivered"]
    assert "503" in (found[0].because or "")
    assert "secret" not in (found[0].because or "")


@pytest.mark.parametrize("answer", [b"no HTTP\r\n\r\n", b""])
def test_a_webhook_that_does_not_speak_http_is_reported(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_delivery, "_PAUSE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with AlarmDelivery(f"http://127.0.0.1:{server.getsockname()[1]}/") as delivery:
            delivery.send(ALARM)
            found = problems_of(delivery)
    assert [finding.rule for finding in found] == ["alarm-not-delivered"]


def test_an_address_that_http_refuses_is_reported_each_other_alarm_is_still_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_delivery, "_PAUSE_S", 0.05)
    path = tmp_path / "called"
    script = f"open(r'{path}', 'w')"
    url = "http://127.0.0.1:1/a room"
    with AlarmDelivery(url, f'"{sys.executable}" -c "{script}"') as delivery:
        delivery.send(ALARM)
        found = problems_of(delivery)
    assert [finding.rule for finding in found] == ["alarm-not-delivered"]
    assert path.exists()


def test_a_webhook_that_does_not_answer_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the test takes, however busy the machine is.
    monkeypatch.setattr(alarm_delivery, "_REQUEST_LIMIT_S", 5 * PATIENCE_S)
    monkeypatch.setattr(alarm_delivery, "_CLOSE_LIMIT_S", 0.1)
    began_s = time.monotonic()
    with silent_server() as url:
        with AlarmDelivery(url) as delivery:

            def send_all() -> None:
                for _ in range(300):
                    delivery.send(ALARM)

            # The queue stays full: had each to wait for room, no repetition would be quick.
            assert least_s(send_all, 0.25) < 0.25
            (found,) = delivery.problems()
        assert time.monotonic() - began_s < PATIENCE_S
    assert found.because == "100 alarms wait to be sent; newer ones are not"


def test_a_webhook_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_delivery, "_PAUSE_S", 0.05)
    monkeypatch.setattr(alarm_delivery, "_REQUEST_LIMIT_S", 0.3)
    with silent_server() as url, AlarmDelivery(url) as delivery:
        delivery.send(ALARM)
        (found,) = problems_of(delivery)
    assert found.because == "127.0.0.1 did not answer within 300 ms"


def test_a_command_gets_the_alarm_on_its_stdin(tmp_path: Path) -> None:
    path = tmp_path / "alarm.json"
    script = f"import sys; open(r'{path}', 'w').write(sys.stdin.read())"
    with AlarmDelivery(command=f'"{sys.executable}" -c "{script}"') as delivery:
        delivery.send(ALARM)
    assert delivery.problems() == []
    assert json.loads(path.read_text())["finding"]["rule"] == "gpu-xid"


def test_a_command_that_fails_is_reported_with_its_last_line() -> None:
    script = "import sys; sys.exit('no such room')"
    with AlarmDelivery(command=f'"{sys.executable}" -c "{script}"') as delivery:
        delivery.send(ALARM)
        found = problems_of(delivery)
    assert [finding.because for finding in found] == ["exit code 1: no such room"]


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_delivery, "_COMMAND_LIMIT_S", 0.5)
    script = "import time; time.sleep(60)"
    with AlarmDelivery(command=f'"{sys.executable}" -c "{script}"') as delivery:
        delivery.send(ALARM)
        found = problems_of(delivery)
    assert [finding.because for finding in found] == ["it did not end within 500 ms"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://a/b", "http://", "http://a:port/", "file:///x"])
def test_a_webhook_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not a web address") as caught:
        check_webhook(url)
    assert caught.value.rule == "bad-webhook"
