"""What a load test finds out about a server before it begins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.load_server import Asked, Reply, flatout_pages, load_server

from flatout.errors import FlatoutError
from flatout.serve.answer_check import is_expected, is_expected_body
from flatout.serve.load_target import LoadRequest, LoadTarget, find_target
from flatout.serve.server_metrics import load_between, parsed


def flatout_server(asked: Asked) -> Reply:
    return flatout_pages(asked) or Reply()


def rule_of(request: LoadRequest) -> FlatoutError:
    with pytest.raises(FlatoutError) as raised:
        find_target(request)
    return raised.value


def found(url: str, **more: object) -> LoadTarget:
    return find_target(LoadRequest(url=url, **more))  # type: ignore[arg-type]


def test_target_when_the_server_is_of_flatout() -> None:
    with load_server(flatout_server) as server:
        target = found(server.url)
    assert target.bodies == (b'{"inputs":[[1,2]]}',)
    assert target.url == f"{server.url}/predict"
    assert target.server == "flatout 0.1.0"
    last = server.asked[-1]
    assert (last.method, last.path, last.body) == ("POST", "/predict", target.bodies[0])
    assert last.headers["content-type"] == "application/json"


def test_target_when_the_server_is_another_one() -> None:
    with load_server(lambda asked: Reply(b"<html>")) as server:
        error = rule_of(LoadRequest(url=server.url))
        assert error.rule == "loadtest-no-input" and "not a flatout server" in str(error)
        target = found(server.url, input='{"x": 1}', path="/score")
    assert target.url == f"{server.url}/score" and target.server is None


def test_target_when_the_model_has_no_example() -> None:
    pages = lambda asked: flatout_pages(asked, b"null") or Reply()  # noqa: E731
    with load_server(pages) as server:
        assert "has no example" in str(rule_of(LoadRequest(url=server.url)))


def test_target_when_the_address_has_a_path() -> None:
    with load_server() as server:
        assert found(f"{server.url}/v1/score", input="1").url == f"{server.url}/v1/score"
        assert found(f"{server.url}/a?b=c", input="1").url == f"{server.url}/a?b=c"


def test_target_when_it_is_only_read() -> None:
    with load_server() as server:
        target = found(server.url, method="GET", path="/health/live")
    assert target.bodies == (b"",)
    assert server.asked[-1].path == "/health/live"


@pytest.mark.parametrize("path", ["/first-3fa9c1", "/first-3fa9c1/predict"])
def test_target_when_a_flatout_server_is_below_a_path(path: str) -> None:
    def reply(asked: Asked) -> Reply:
        own = asked.path.removeprefix("/first-3fa9c1")
        if own == asked.path:
            return Reply(status=404)
        return flatout_pages(dataclasses.replace(asked, path=own)) or Reply()

    with load_server(reply) as server:
        target = found(server.url + path)
    assert target.base == server.url + "/first-3fa9c1"
    assert target.url == target.base + "/predict"
    assert target.server == "flatout 0.1.0" and target.bodies == (b'{"inputs":[[1,2]]}',)


def test_target_when_inputs_are_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with load_server() as server:
        assert found(server.url, input=str(tmp_path / "a.jsonl")).bodies == (
            b'{"x": 1}', b'{"x": 2}',
        )  # fmt: skip
        target = found(server.url, input=str(tmp_path / "a.png"))
    assert target.headers["Content-Type"] == "image/png" and target.bodies == (b"\x89PNG",)


def test_target_when_headers_and_a_token_are_given(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("kept\n")
    with load_server() as server:
        target = found(server.url, input="1", headers=("X-Key: a:b",), token="secret")
        found(server.url, input="1", token=f"@{tmp_path / 'token'}")
    assert target.headers["X-Key"] == "a:b"
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    assert server.asked[-1].headers["authorization"] == "Bearer kept"


def test_target_when_headers_are_written_in_lower_case() -> None:
    headers = ("content-type: text/csv", "host: example.com", "user-agent: mine", "x-key: a")
    with load_server(flatout_server) as server:
        target = found(server.url, headers=headers)
    assert target.headers == {
        "User-Agent": "mine", "Content-Type": "text/csv", "Host": "example.com", "x-key": "a",
    }  # fmt: skip


def test_input_when_it_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes('"señal"'.encode("latin-1"))
    error = rule_of(LoadRequest(url="http://127.0.0.1:9", input=str(tmp_path / "latin.json")))
    assert error.rule == "loadtest-bad-input" and "UTF-8" in str(error)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"url": "127.0.0.1:8000"}, "loadtest-bad-url"),
        ({"url": "ftp://a"}, "loadtest-bad-url"),
        ({"url": "http://"}, "loadtest-bad-url"),
        ({"url": "http://a:b@c"}, "loadtest-bad-url"),
        ({"url": "http://[::1"}, "loadtest-bad-url"),
        ({"url": "http://a:99999"}, "loadtest-bad-url"),
        ({"path": "predict"}, "loadtest-bad-url"),
        ({"headers": ("no header",)}, "loadtest-bad-header"),
        ({"headers": ("a: b\r\nc: d",)}, "loadtest-bad-header"),
        ({"input": "1", "token": "two words"}, "bad-token"),
        ({"input": "{"}, "loadtest-bad-input"),
        ({"input": ""}, "loadtest-bad-input"),
        ({"input": "missing.json"}, "loadtest-bad-input"),
        ({"input": "[" * 100_000}, "loadtest-bad-input"),
        ({"check": "not json"}, "loadtest-bad-input"),
        ({"input": "1"}, "loadtest-no-server"),
    ],
)
def test_request_when_it_is_wrong(changes: dict[str, object], rule: str) -> None:
    # Nothing listens on port 9 of this machine.
    request = {"url": "http://127.0.0.1:9", **changes}
    assert rule_of(LoadRequest(**request)).rule == rule  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "rule"),
    [
        (401, "loadtest-needs-token"),
        (403, "loadtest-needs-token"),
        (404, "loadtest-refused"),
        (307, "loadtest-refused"),
        (422, "loadtest-refused"),
        (500, "loadtest-refused"),
    ],
)
def test_server_when_it_refuses(status: int, rule: str) -> None:
    with load_server(lambda asked: Reply(b"shape is wrong", status=status)) as server:
        error = rule_of(LoadRequest(url=server.url, input="1"))
    assert error.rule == rule and str(status) in str(error)


def test_server_when_it_is_busy() -> None:
    with load_server(lambda asked: Reply(status=503)) as server:
        assert found(server.url, input="1").bodies == (b"1",)


def test_server_when_it_does_not_speak_http() -> None:
    with load_server(lambda asked: Reply(is_closed=True)) as server:
        assert rule_of(LoadRequest(url=server.url, input="1")).rule == "loadtest-no-server"


def test_server_when_it_is_slow() -> None:
    with load_server(lambda asked: Reply(delay_s=2.0)) as server:
        error = rule_of(LoadRequest(url=server.url, input="1", timeout_s=0.2))
    assert error.rule == "loadtest-no-server" and "within 200 ms" in str(error)


def test_check_when_the_first_answer_is_wrong() -> None:
    with load_server() as server:
        error = rule_of(LoadRequest(url=server.url, input="1", check='{"predictions": [8]}'))
        assert error.rule == "loadtest-wrong-answer" and "[7]" in str(error)
        found(server.url, input="1", check='{"predictions": [7]}')


def test_check_when_it_has_too_few_answers(tmp_path: Path) -> None:
    for name, count in (("in", 3), ("out", 2)):
        (tmp_path / f"{name}.jsonl").write_text("1\n" * count)
    with load_server() as server:
        error = rule_of(
            LoadRequest(
                url=server.url, input=str(tmp_path / "in.jsonl"), check=str(tmp_path / "out.jsonl")
            )
        )
    assert "2 answers for 3 inputs" in str(error)


@pytest.mark.parametrize(
    ("expected", "answer", "is_right"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ([{"a": 0.9}], [{"a": 0.9004, "b": 1}], True),
        ([{"a": 0.9}], [{"a": 0.902}], False),
        ([1, 2], [1], False),
        (True, 1, False),
        (1, True, False),
        ("a", "a", True),
        (None, None, True),
        (0, 1e-7, True),
        ({"a": 1}, [1], False),
    ],
)
def test_answer_when_checked(expected: object, answer: object, is_right: bool) -> None:
    assert is_expected(expected, answer) is is_right
    assert is_expected_body(expected, json.dumps(answer).encode()) is is_right


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_answer_when_it_is_no_json(body: bytes) -> None:
    assert not is_expected_body({"a": 1}, body)


METRICS = """\
# TYPE flatout_serve_queue_requests gauge
flatout_serve_queue_requests 3
# TYPE flatout_serve_batches counter
flatout_serve_batches_total {batches}
# TYPE flatout_serve_samples counter
flatout_serve_samples_total {samples}
# TYPE flatout_serve_queue_duration_seconds histogram
flatout_serve_queue_duration_seconds_bucket{{le="+Inf"}} {samples}
flatout_serve_queue_duration_seconds_sum {seconds}
flatout_serve_queue_duration_seconds_count {samples}
"""


def test_metrics_when_read_twice() -> None:
    texts = [
        METRICS.format(batches=10, samples=20, seconds=1.0),
        METRICS.format(batches=20, samples=100, seconds=2.0),
    ]
    load = load_between([parsed(texts[0]), None, parsed(texts[1])], [1.0, 3.0])
    assert load is not None
    assert (load.num_batches, load.mean_batch, load.max_queue_depth) == (10, 8.0, 3.0)
    assert load.mean_queue_s == pytest.approx(1 / 80)


@pytest.mark.parametrize("counts", [(20, 10), (20, 10, 30)])
def test_metrics_when_the_server_was_restarted(counts: tuple[int, ...]) -> None:
    texts = [METRICS.format(batches=one, samples=5 * one, seconds=one / 10) for one in counts]
    load = load_between(list(map(parsed, texts)), [])
    assert load is not None and load.mean_batch is None and load.max_queue_depth is None


def test_metrics_when_they_are_missing() -> None:
    assert load_between([None, parsed("a 1\n")], []) is None
    assert parsed("a{ 1 2 3") is None
