"""The HTTP application under a real server: routes, errors, token, streams, clients that leave."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.busy_machine import wait_until
from support.linear_dispatcher import MODEL, LinearDispatcher, exchange, serving

from flatout.errors import FlatoutError
from flatout.schema.finding import Finding
from flatout.schema.serve_protocol import FileInput, ReplicaStart, TextInput
from flatout.serve import http_server
from flatout.serve.application import ApplicationOptions
from flatout.serve.dispatcher import Answer, InferRequest
from flatout.serve.limits import ServeLimits
from flatout.serve.serve_errors import (
    InputNotAccepted,
    ModelFailed,
    RequestKilledModel,
    ServerBusy,
    ServerStopping,
)
from flatout.serve.token_hash import TokenHash

STREAMING = msgspec.structs.replace(MODEL, can_stream=True)


def client_of(address: str, **more: object) -> httpx.Client:
    return httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=120, **more)  # type: ignore[arg-type]


def rule_of(response: httpx.Response) -> str:
    """The id of an error that has all of its parts."""
    body = response.json()
    assert body["error"] and body["fix"]
    assert body["see"] == f"flatout explain {body['rule']}"
    return str(body["rule"])


def test_predict_when_inputs_are_numbers() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        response = client.post("/predict", json={"inputs": [[1, 0, 0, 0], [0, 0, 0, 1]]})
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.json() == {
            "model": "linear",
            "version": "1",
            "predictions": [[{"label": "high", "sum": -12.0}], [{"label": "high", "sum": 15.0}]],
        }
        one = client.post("/predict", json={"input": [1, 0, 0, 0]}).json()
        assert one["predictions"] == response.json()["predictions"][:1]


def test_predict_when_inputs_are_more_than_a_batch() -> None:
    dispatcher = LinearDispatcher()
    with serving(dispatcher) as address, client_of(address) as client:
        rows = [[n, 0, 0, 0] for n in range(30)]
        found = client.post("/predict", json={"inputs": rows}).json()["predictions"]
        assert [row["sum"] for (row,) in found] == [-12.0 * n for n in range(30)]
    assert [request.num_samples for request in dispatcher.requests] == [8, 8, 8, 6]


def test_predict_when_the_body_is_compressed() -> None:
    body = gzip.compress(b'{"input": [1, 0, 0, 0]}', mtime=0)
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        response = client.post("/predict", content=body, headers={"content-encoding": "gzip"})
        assert response.json()["predictions"] == [[{"label": "high", "sum": -12.0}]]


def test_predict_when_inputs_are_files_and_texts() -> None:
    dispatcher = LinearDispatcher()
    with serving(dispatcher) as address, client_of(address) as client:
        files = [("a", ("../x.png", b"first")), ("b", ("/etc/y", b"second"))]
        assert client.post("/predict?top=2", files=files).status_code == 200
        head = {"content-type": "text/plain"}
        assert client.post("/predict", content="text", headers=head).status_code == 200
        head = {"content-type": "image/png"}
        refused = client.post("/predict", content=b"\x89PNG\r\n\x1a\n", headers=head)
        assert (refused.status_code, rule_of(refused)) == (422, "file-damaged")
    found = [(request.input, request.top) for request in dispatcher.requests]
    assert found == [(FileInput(b"first"), 2), (FileInput(b"second"), 2), (TextInput("text"), 1)]


def test_predict_when_the_body_is_large() -> None:
    # It is read in a thread.
    body = b'{"input": [1, 0, 0,' + b" " * (2 << 20) + b"0]}"
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        assert client.post("/predict", content=body).status_code == 200


def test_predict_when_many_large_bodies_come_at_once() -> None:
    # Of each, up to thirty times its bytes are in memory while it is read.
    body = gzip.compress(bytes(100 << 20))
    head = {"content-type": "application/octet-stream"}
    with serving(LinearDispatcher()) as address, client_of(address) as client:

        def send() -> None:
            statuses.append(client.post("/predict", content=body, headers=head).status_code)

        statuses: list[int] = []
        clients = [threading.Thread(target=send) for _ in range(6)]
        before = {*threading.enumerate(), *clients}
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        readers = set(threading.enumerate()) - before
        assert statuses == [200] * 6 and 1 <= len(readers) <= 2


FINDING = Finding(rule="bad-prediction", severity="error", problem="too old.")


@pytest.mark.parametrize(
    ("error", "status", "rule", "retry"),
    [
        (ServerBusy("the queue is full", 2.5), 503, "server-busy", "3"),
        (ServerStopping(), 503, "server-is-stopping", "5"),
        (RequestKilledModel("it ended with signal 9"), 500, "request-killed-the-model", None),
        (InputNotAccepted(FINDING), 422, "input-not-accepted", None),
        (ModelFailed(FINDING), 500, "model-failed", None),
        (KeyError("secret"), 500, "internal-error", None),
    ],
)
def test_predict_when_there_is_no_answer(
    error: Exception, status: int, rule: str, retry: str | None
) -> None:
    with serving(LinearDispatcher(error=error)) as address, client_of(address) as client:
        response = client.post("/predict", json={"input": [1, 2, 3, 4]})
        assert (response.status_code, rule_of(response)) == (status, rule)
        assert response.headers.get("retry-after") == retry
        assert "Traceback" not in response.text and "secret" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "rule"),
    [
        ("GET", "/predict", 405, "method-not-allowed"),
        ("POST", "/nowhere", 404, "no-such-route"),
        ("GET", "/predict/", 404, "no-such-route"),
        ("GET", "/v2/models/other", 404, "no-such-model"),
        ("GET", "/v2/models/linear/versions/2", 404, "no-such-model"),
        ("POST", "/v2/models/other/infer", 404, "no-such-model"),
        ("POST", "/predict?stream=true", 400, "body-not-readable"),
        ("POST", "/predict?topp=1", 400, "request-invalid"),
        ("POST", "/predict", 400, "body-not-readable"),
    ],
)
def test_application_when_a_request_is_wrong(
    method: str, path: str, status: int, rule: str
) -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        response = client.request(method, path)
        assert (response.status_code, rule_of(response)) == (status, rule)
        assert (response.headers.get("allow") is not None) == (status == 405)


def test_application_when_the_token_is_needed() -> None:
    options = ApplicationOptions(token=TokenHash.of("geheim-ä"))
    with serving(LinearDispatcher(), options) as address, client_of(address) as client:
        right = {"authorization": "Bearer geheim-ä".encode()}
        assert client.get("/metrics", headers=right).status_code == 200
        for wrong in ({}, {"authorization": "Bearer no"}, {"authorization": "geheim"}):
            response = client.get("/metrics", headers=wrong)
            assert (response.status_code, rule_of(response)) == (401, "token-not-accepted")
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.post("/predict", content=b"x" * 3_000_000).status_code == 401
        assert client.get("/health/ready").status_code == 401
        for path in ("/health/live", "/v2/health/live", "/docs", "/docs/swagger-ui.css"):
            assert client.get(path).status_code == 200
        # The routes are described to all, the model only to those with the token.
        assert "linear" not in client.get("/openapi.json").text
        document = client.get("/openapi.json", headers=right).json()
        assert document["info"]["title"] == "flatout: linear"
        assert document["security"] == [{"token": []}]


def test_health_when_no_replica_is_ready() -> None:
    dispatcher = LinearDispatcher()
    with serving(dispatcher) as address, client_of(address) as client:
        assert client.get("/health/ready").json() == {"ready": True}
        dispatcher.is_ready = False
        response = client.get("/health/ready")
        assert (response.status_code, rule_of(response)) == (503, "server-not-ready")
        assert client.get("/health/live").json() == {"live": True}


def test_route_when_the_path_is_that_of_a_pattern() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        response = client.post("/v2/models/%7Bmodel%7D/infer", json={"inputs": []})
        assert (response.status_code, rule_of(response)) == (404, "no-such-model")


def test_metrics_when_requests_were_answered() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        client.post("/predict", json={"input": [1, 2, 3, 4]})
        client.post("/predict", json={"input": [1, 2]})
        client.get("/nowhere")
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        found = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }
    assert found["flatout_serve_requests_total", "/predict", "200"] == 1
    assert found["flatout_serve_requests_total", "/predict", "422"] == 1
    assert found["flatout_serve_requests_total", "404", "other"] == 1
    assert found["flatout_serve_request_duration_seconds_count", "/predict"] == 2
    assert found["flatout_serve_queue_duration_seconds_count",] == 1
    assert found["flatout_serve_batch_size_samples_sum",] == 1
    assert found["flatout_serve_replicas", "ready"] == 1
    assert found["flatout_serve_replica_memory_bytes", "", "0", "1"] == 1024
    assert found["flatout_serve_queue_limit_requests",] == 10
    assert found["flatout_serve_batch_limit_samples",] == 8
    assert found["flatout_serve_batch_measurement_failures_total",] == 0
    assert found["flatout_serve_answers_total",] == 1


def test_predict_when_the_client_leaves() -> None:
    dispatcher = LinearDispatcher(delay_s=30)
    body = b'{"input": [1, 2, 3, 4]}'
    request = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    with serving(dispatcher) as address, client_of(address) as client:
        host, port = address.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.sendall(request)
        wait_until(lambda: len(dispatcher.requests) == 1)
        connection.close()
        wait_until(lambda: dispatcher.num_cancelled == 1)
        wait_until(lambda: 'status="499"' in client.get("/metrics").text)


def test_predict_when_one_of_several_requests_fails() -> None:
    class FailsAtSecond(LinearDispatcher):
        async def submit(self, request: InferRequest) -> Answer:
            if self.requests:
                self.requests.append(request)
                raise ServerBusy("the queue is full", 1.0)
            return await super().submit(request)

    dispatcher = FailsAtSecond(delay_s=30)
    with serving(dispatcher) as address, client_of(address) as client:
        response = client.post("/predict", json={"inputs": [[1, 2, 3, 4]] * 16})
        assert rule_of(response) == "server-busy"
        wait_until(lambda: dispatcher.num_cancelled == 1)


def test_predict_when_the_model_is_swapped_within_a_request() -> None:
    class SwapsAtSecond(LinearDispatcher):
        async def submit(self, request: InferRequest) -> Answer:
            if len(self.requests) == 1:
                await self.swap(ReplicaStart(model="2"))
            return await super().submit(request)

    dispatcher = SwapsAtSecond()
    with serving(dispatcher) as address, client_of(address) as client:
        answer = client.post("/predict", json={"inputs": [[1, 2, 3, 4]] * 16}).json()
    assert (answer["version"], len(answer["predictions"])) == ("2", 16)
    assert len(dispatcher.requests) == 4


def test_infer_when_the_model_is_swapped_after_it_was_checked() -> None:
    class SwapsAtFirst(LinearDispatcher):
        async def submit(self, request: InferRequest) -> Answer:
            if not self.requests:
                await self.swap(ReplicaStart(model="2"))
            return await super().submit(request)

    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 0, 0, 0]}
    with serving(SwapsAtFirst()) as address, client_of(address) as client:
        response = client.post("/v2/models/linear/infer", json={"inputs": [x]})
        assert response.json()["model_version"] == "2"
    with serving(SwapsAtFirst()) as address, client_of(address) as client:
        # Never the answer of another version than the client has named.
        response = client.post("/v2/models/linear/versions/1/infer", json={"inputs": [x]})
        assert (response.status_code, rule_of(response)) == (404, "no-such-model")


def test_stream_when_the_model_generates() -> None:
    dispatcher = LinearDispatcher(STREAMING)
    dispatcher.pieces = ["Hel", "lo\n", "ä"]
    with serving(dispatcher) as address, client_of(address) as client:
        response = client.post("/predict?stream=true", json={"input": "Say hello"})
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.text == (
            'data: {"text":"Hel"}\n\ndata: {"text":"lo\\n"}\n\ndata: {"text":"ä"}\n\n'
            'event: end\ndata: {"model":"linear","version":"1"}\n\n'
        )
        head = {"accept": "text/event-stream;q=1, */*;q=0.1"}
        assert client.post("/predict", json={"input": "x"}, headers=head).text == response.text
        two = client.post("/predict", json={"inputs": ["a", "b"]}, headers=head)
        assert rule_of(two) == "request-invalid"


def test_stream_when_it_fails() -> None:
    dispatcher = LinearDispatcher(STREAMING)
    error: FlatoutError = ModelFailed(FINDING)
    with serving(dispatcher) as address, client_of(address) as client:
        dispatcher.pieces = [error]
        response = client.post("/predict?stream=true", json={"input": "a"})
        assert (response.status_code, rule_of(response)) == (500, "model-failed")
        dispatcher.pieces = ["a", error]
        response = client.post("/predict?stream=true", json={"input": "a"})
        assert response.status_code == 200
        last = response.text.split("\n\n")[-2]
        assert last.startswith("event: error\n")
        assert json.loads(last.partition("data: ")[2])["rule"] == "model-failed"


def test_stream_when_the_client_leaves() -> None:
    dispatcher = LinearDispatcher(STREAMING, delay_s=0.01)
    dispatcher.pieces = ["x"] * 100_000
    with serving(dispatcher) as address, client_of(address) as client:
        with client.stream("POST", "/predict?stream=1", json={"input": "a"}) as response:
            next(response.iter_bytes())
        wait_until(lambda: dispatcher.num_cancelled == 1)


def test_stream_when_the_model_cannot() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        response = client.post("/predict?stream=true", json={"input": "a"})
        assert (response.status_code, rule_of(response)) == (400, "model-cannot-stream")


SMALL = ApplicationOptions(limits=ServeLimits(body_bytes=1000, body_s=0.3))


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999\r\n\r\nabc",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001,
        b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"100\r\n%b\r\n" % (b"x" * 256) * 20
        + b"0\r\n\r\n",
    ],
)
def test_application_when_the_body_is_too_large(request_: bytes) -> None:
    with serving(LinearDispatcher(), SMALL) as address:
        received = exchange(address, request_)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"rule":"body-too-large"' in received
    assert b"connection: close" in received.lower()


def test_application_when_the_body_is_slow() -> None:
    with serving(LinearDispatcher(), SMALL) as address:
        head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
        received = exchange(address, head)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"rule":"body-too-slow"' in received


def test_application_when_the_body_is_truncated() -> None:
    dispatcher = LinearDispatcher()
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    with serving(dispatcher) as address, client_of(address) as client:
        received = exchange(address, head + b'{"input": [1, 2, 3, 4]}', is_half_closed=True)
        assert received == b""
        assert client.get("/health/live").status_code == 200
    assert dispatcher.requests == []


@pytest.mark.parametrize(
    "request_",
    [b"nonsense\r\n\r\n", b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\0\xff" * 100],
)
def test_server_when_it_is_not_http(request_: bytes) -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        received = exchange(address, request_)
        assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b'"rule":"request-invalid"' in received
        assert client.get("/health/live").status_code == 200


def test_server_when_headers_are_too_large() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\n")
            with contextlib.suppress(OSError):
                # Without an end, it would take any amount of memory.
                for _ in range(1000):
                    connection.sendall(b"a: " + b"b" * 10_000 + b"\r\n")
                    time.sleep(0.001)
                pytest.fail("the server read all of it")
        assert client.get("/health/live", headers={"a": "b" * 30_000}).status_code == 200


@pytest.mark.parametrize("piece", [b"a: " + b"b" * 10_000 + b"\r\n", b"c" * 10_000])
def test_server_when_trailers_are_too_large(piece: bytes) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall(head + b"2\r\n{}\r\n0\r\na: ")
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    connection.sendall(piece)
                    time.sleep(0.001)
                pytest.fail("the server read all of it")
        assert client.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        b"nonsense\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
def test_server_when_the_next_request_is_wrong(wrong: bytes) -> None:
    """Its refusal must not be taken for the answer to the request that is being computed."""
    dispatcher = LinearDispatcher(delay_s=0.3)
    body = b'{"input": [1, 2, 3, 4]}'
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(dispatcher) as address:
        assert exchange(address, head + body + wrong) == b""


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /health/live HTTP/1.1\r\nHost: a\r\n"])
def test_server_when_headers_are_slow(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "_HEADERS_S", 1.0)
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        received = exchange(address, sent)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b'"rule":"headers-too-slow"' in received
        # Not the pause between two requests.
        assert client.get("/health/live").status_code == 200
        time.sleep(1.2)
        assert client.get("/health/live").status_code == 200


def test_server_stops_when_a_client_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_STOP_S", 1)
    dispatcher = LinearDispatcher(STREAMING)
    dispatcher.pieces = ["x" * 1_000_000] * 100
    body = b'{"input": "a"}'
    head = b"POST /predict?stream=1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(dispatcher) as address:
        host, port = address.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.sendall(head + body)
        wait_until(lambda: len(dispatcher.requests) == 1)
        began_s = time.monotonic()
    # Its answer would never end.
    assert time.monotonic() - began_s < 60
    connection.close()


def test_docs_loads_nothing_from_elsewhere() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        page = client.get("/docs")
        assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "://" not in page.text
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(files) == 3
        for file in files:
            found = client.get(f"/{file}")
            assert found.status_code == 200 and found.content
            assert found.headers["x-content-type-options"] == "nosniff"
        # The package's own page loads an example from the internet.
        for file in ("index.html", "..%2f..%2f__init__.py", "%2fetc%2fpasswd"):
            refused = client.get(f"/docs/{file}")
            assert (refused.status_code, rule_of(refused)) == (404, "no-such-route")


def test_infer_when_the_client_sends_bytes() -> None:
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [x], "id": "9"}).encode()
    data = struct.pack("<4f", 1, 0, 0, 0)
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        head = {"Inference-Header-Content-Length": str(len(text))}
        url = "/v2/models/linear/versions/1/infer"
        response = client.post(url, content=text + data, headers=head)
        assert response.json()["outputs"][0]["data"] == [-5.0, -4.0, -3.0]
        assert response.json()["id"] == "9"
        refused = client.post(url, content=text + data[:-1], headers=head)
        assert (refused.status_code, rule_of(refused)) == (400, "body-not-readable")


def test_answers_when_many_clients_ask_at_once() -> None:
    wrong = []

    def ask(number: int) -> None:
        with client_of(address) as client:
            for step in range(20):
                value = number * 100 + step
                answer = client.post("/predict", json={"input": [value, 0, 0, 0]}).json()
                if answer["predictions"][0][0]["sum"] != -12.0 * value:
                    wrong.append(answer)

    with serving(LinearDispatcher(delay_s=0.001)) as address:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_metrics_when_promtool_checks_them() -> None:
    with serving(LinearDispatcher()) as address, client_of(address) as client:
        client.post("/predict", json={"input": [1, 2, 3, 4]})
        text = client.get("/metrics").text
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
