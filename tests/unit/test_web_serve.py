"""The page of running servers, asked over HTTP, and an input that is tried on one."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.web_runs import FORM_TOKEN, web_client

from flatout.schema.serve_control import ControlFile
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.serve import server_status
from flatout.serve.open_inference import model_metadata
from flatout.serve.openapi_document import openapi_document
from flatout.serve.server_status import figures_in, quantile
from flatout.system import serve_files

OWN = {"origin": "http://127.0.0.1:8420"}
MODEL = ServedModel(
    name="mnist-0001", version="mnist-0001.9", format="run",
    inputs=(TensorSpec(name="input", dtype="float32", shape=(None, 1, 2, 2)),),
    accepts=("tensors", "file", "value", "text"), example=[[[0.0, 1.0], [1.0, 0.0]]],
)  # fmt: skip
METRICS = """
# TYPE flatout_serve_request_duration_seconds histogram
flatout_serve_request_duration_seconds_bucket{le="0.01",route="/predict"} 50.0
flatout_serve_request_duration_seconds_bucket{le="0.02",route="/predict"} 100.0
flatout_serve_request_duration_seconds_bucket{le="+Inf",route="/predict"} 100.0
flatout_serve_request_duration_seconds_bucket{le="0.01",route="/metrics"} 900.0
flatout_serve_request_duration_seconds_bucket{le="+Inf",route="/metrics"} 900.0
# TYPE flatout_serve_batch_size_samples histogram
flatout_serve_batch_size_samples_bucket{le="1.0"} 40.0
flatout_serve_batch_size_samples_bucket{le="2.0"} 40.0
flatout_serve_batch_size_samples_bucket{le="+Inf"} 100.0
# TYPE flatout_serve_queue_requests gauge
flatout_serve_queue_requests 7.0
# TYPE flatout_serve_replicas gauge
flatout_serve_replicas{phase="ready"} 2.0
flatout_serve_replicas{phase="starting"} 1.0
# TYPE flatout_serve_samples counter
flatout_serve_samples_total 300.0
# TYPE flatout_serve_batches counter
flatout_serve_batches_total 200.0
# TYPE flatout_serve_model_info gauge
flatout_serve_model_info{device="cpu",format="run",model="mnist-0001",version="v9"} 1.0
"""


class FlatoutServer(BaseHTTPRequestHandler):
    """Answers as `flatout serve` does, and keeps what it was sent."""

    received: list[tuple[str, str, bytes]] = []
    token: str | None = None

    def do_GET(self) -> None:
        if self.token is not None and self.headers["Authorization"] != f"Bearer {self.token}":
            self._send(401, {"error": "no token"})
        elif self.path == "/metrics":
            self._send(200, METRICS.encode())
        elif self.path == "/openapi.json":
            self._send(200, openapi_document(MODEL, "0", has_token=False))
        elif self.path == "/v2/models/mnist-0001":
            self._send(200, model_metadata(MODEL))
        else:
            self._send(404, {"error": "?"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Content-Type"], body))
        if body == b"bad":
            error = {"error": "a file is <b>damaged</b>.", "fix": "send it", "see": "-",
                     "rule": "file-damaged"}  # fmt: skip
            self._send(422, error)
            return
        rows = [[{"label": "seven", "probability": 0.75, "label_2": "one"}]]
        self._send(200, {"model": MODEL.name, "version": MODEL.version, "predictions": rows})

    def _send(self, status: int, value: Any) -> None:
        content = value if isinstance(value, bytes) else msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.delenv("FLATOUT_SERVE_TOKEN", raising=False)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a running server of this user."""
    monkeypatch.setattr(FlatoutServer, "received", [])
    monkeypatch.setattr(FlatoutServer, "token", None)
    with ThreadingHTTPServer(("127.0.0.1", 0), FlatoutServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        number = server.server_address[1]
        control = ControlFile(
            name="mnist-0001", port=number, control_port=number, secret="s" * 40, host="0.0.0.0"
        )
        serve_files.write_control(control)
        yield number
        server.shutdown()


def send(port: int, kind: str, **parts: Any) -> Any:
    form = {"form_token": FORM_TOKEN, "port": str(port), "kind": kind, **parts.pop("data", {})}
    return web_client().post("/serve", data=form, headers=OWN, **parts)


def test_serve_without_a_server() -> None:
    assert "flatout serve RUN" in web_client().get("/serve").text


def test_serve_shows_what_servers_measure(port: int) -> None:
    (server,) = json.loads(web_client().get("/serve.json").text)["servers"]
    assert server["url"] == f"http://127.0.0.1:{port}" and server["picture"] == [2, 2]
    assert server["accepts"] == ["file", "text", "value"] and server["example"] == MODEL.example
    text = web_client().get("/serve").text
    for shown in ("mnist-0001", "v9", "<canvas", "In the queue", "10 ms", "[[[0.0, 1.0]"):
        assert shown in text
    assert "s" * 40 not in text


def test_serve_when_a_server_needs_a_token(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatoutServer, "token", "abc")
    text = web_client().get("/serve").text
    assert "needs its token" in text and "<canvas" not in text
    monkeypatch.setenv("FLATOUT_SERVE_TOKEN", "abc")
    assert "<canvas" in web_client().get("/serve").text


def rule_shown() -> str:
    (server,) = json.loads(web_client().get("/serve.json").text)["servers"]
    return str(server["problem"]["rule"])


@pytest.mark.parametrize("content", [b"{not metrics", b"flatout_serve_replicas 2.0\n"])
def test_serve_when_another_program_answers(
    port: int, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(FlatoutServer, "do_GET", lambda self: self._send(200, content))
    assert rule_shown() == "server-not-understood"


def test_serve_when_a_server_does_not_answer(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatoutServer, "do_GET", lambda self: None)
    assert rule_shown() == "server-gone"


def test_serve_when_what_answers_is_not_http() -> None:
    def greet(listener: socket.socket) -> None:
        # Until it is closed.
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                # The first one only looks whether anything listens.
                with link, contextlib.suppress(OSError):
                    link.recv(4096)
                    link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        serve_files.write_control(
            ControlFile(name="gone", port=number, control_port=number, secret="s" * 40)
        )
        assert rule_shown() == "server-not-understood"


@pytest.mark.parametrize(
    "content",
    [None, [], {"application/json": None}, {"application/json": []},
     {"application/json": {"example": "a text"}}],
)  # fmt: skip
def test_serve_when_the_document_is_of_another_program(
    port: int, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    document = openapi_document(MODEL, "0", has_token=False)
    document["paths"]["/predict"]["post"]["requestBody"]["content"] = content

    own_answer = FlatoutServer.do_GET

    def answer(self: FlatoutServer) -> None:
        if self.path == "/openapi.json":
            self._send(200, document)
        else:
            own_answer(self)

    monkeypatch.setattr(FlatoutServer, "do_GET", answer)
    assert rule_shown() == "server-not-understood"


def test_bug_is_not_shown_as_a_server_that_is_gone(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(model: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(server_status, "_picture", broken)
    assert rule_shown() == "internal-error"
    assert "in broken" in caplog.text and "ZeroDivisionError: a bug" in caplog.text


def test_server_that_hangs_does_not_keep_the_others_waiting(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_status, "_LIMIT_S", 20.0)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            hung = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            number = hung.getsockname()[1]
            serve_files.write_control(
                ControlFile(name="hung", port=number, control_port=number, secret="s" * 40)
            )
        began_s = time.monotonic()
        servers = json.loads(web_client().get("/serve.json").text)["servers"]
        assert time.monotonic() - began_s < 15
    found = {server["port"]: server for server in servers}
    assert len(found) == 4 and found.pop(port)["figures"] is not None
    problems = [server["problem"] for server in found.values()]
    assert [(one["rule"], one["because"]) for one in problems] == 3 * [
        ("server-gone", "no answer within 3 s")
    ]


def test_file_is_tried(port: int) -> None:
    answer = send(port, "file", files={"input": ("drawing.png", b"\x89PNG", "image/png")})
    assert answer.status_code == 200 and "seven" in answer.text and "75.0 %" in answer.text
    assert FlatoutServer.received == [("/predict?top=3", "application/octet-stream", b"\x89PNG")]


def test_text_and_numbers_are_tried(port: int) -> None:
    assert send(port, "text", data={"input": "ñ"}).status_code == 200
    assert send(port, "value", data={"input": "[1, 2]"}).status_code == 200
    assert FlatoutServer.received == [
        ("/predict?top=3", "text/plain", "ñ".encode()),
        ("/predict?top=3", "application/json", b'{"input":[1, 2]}'),
    ]


def test_input_that_the_server_refuses(port: int) -> None:
    answer = send(port, "file", files={"input": ("a", b"bad")})
    assert answer.status_code == 400
    assert "file-damaged" in answer.text and "&lt;b&gt;damaged" in answer.text


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [("value", "[1,", "not JSON"), ("text", "", "no input"), ("other", "a", "incomplete")],
)
def test_input_that_is_not_sent(port: int, kind: str, value: str, said: str) -> None:
    answer = send(port, kind, data={"input": value})
    assert answer.status_code == 400 and said in answer.text and not FlatoutServer.received


def test_port_that_is_not_a_server_of_this_user(port: int) -> None:
    answer = send(80 if port != 80 else 81, "text", data={"input": "a"})
    assert answer.status_code == 400 and "no-server" in answer.text


def test_figures_are_read_from_metrics() -> None:
    figures = figures_in(METRICS)
    assert (figures.num_queued, figures.num_ready) == (7, 2)
    assert figures.p50_s == pytest.approx(0.01) and figures.p99_s == pytest.approx(0.0198)
    assert figures.mean_batch_samples == 1.5
    batches = [(one.most_samples, one.num_requests) for one in figures.batches]
    assert batches == [(1, 40), (None, 60)]
    assert figures_in("").num_queued is None and figures_in("").p50_s is None


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [({}, None), ({1.0: 0, math.inf: 0}, None), ({1.0: 0, math.inf: 5}, None),
     ({2.0: 4, math.inf: 4}, 1.0), ({1.0: 2, 3.0: 2, math.inf: 4}, 1.0)],
)  # fmt: skip
def test_quantile_of_a_histogram(buckets: dict[float, float], expected: float | None) -> None:
    assert quantile(buckets, 0.5) == expected
