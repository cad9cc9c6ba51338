"""The names by which clients may use a server; a page of another site has none (DNS rebinding)."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner
from support.linear_dispatcher import LinearDispatcher, exchange, serving

from flatout.cli.commands import serve
from flatout.schema.serve_request import ServeRequest
from flatout.serve.allowed_hosts import allowed_hosts
from flatout.serve.application import ApplicationOptions
from flatout.serve.token_hash import TokenHash
from flatout.system.server_socket import own_name

LINEAR = {"input": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost:9000", 200), ("[::1]:8000", 200), ("LOCALHOST", 200),
        (own_name(), 200), ("api.example.com", 200), ("a.lab.example:80", 200),
        ("evil.example:8000", 421), ("127.0.0.1.evil.example", 421), ("127.evil.example", 421),
        ("192.168.1.5:8000", 421), ("[::1", 421), ("localhost@evil.example", 421),
        ("lab.example", 421), ("evil-lab.example", 421),
    ],
)  # fmt: skip
def test_request_by_host_name(host: str, status: int) -> None:
    request = ServeRequest(allowed_hosts=("api.example.com", "*.lab.example"))
    options = ApplicationOptions(token=TokenHash.of("secret"), hosts=allowed_hosts(request))
    with serving(LinearDispatcher(), options) as address:
        headers = {"host": host, "authorization": "Bearer secret"}
        response = httpx.post(
            f"http://{address}/predict", json=LINEAR, headers=headers, trust_env=False
        )
        assert response.status_code == status
        if status == 421:
            assert response.json()["rule"] == "host-not-allowed"
            # Also what is answered without a token.
            live = httpx.get(f"http://{address}/health/live", headers=headers, trust_env=False)
            assert live.status_code == 421


def test_request_without_a_host_is_answered() -> None:
    options = ApplicationOptions(hosts=allowed_hosts(ServeRequest()))
    with serving(LinearDispatcher(), options) as address:
        answer = exchange(address, b"GET /health/live HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_any_host_is_allowed_when_other_computers_can_connect(host: str) -> None:
    assert allowed_hosts(ServeRequest(host=host)) is None


def test_allowed_hosts_when_they_are_named() -> None:
    assert allowed_hosts(ServeRequest(allowed_hosts=("*",))) is None
    named = allowed_hosts(ServeRequest(host="0.0.0.0", allowed_hosts=("api.example.com",)))
    assert named is not None and {"api.example.com", "localhost"} <= named
    other = allowed_hosts(ServeRequest(host="127.0.0.2"))
    assert other is not None and "127.0.0.2" in other


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()), ("*", ("*",)), ("API.example.com, *.lab,", ("api.example.com", "*.lab")),
        ("fd00::1", ("fd00::1",)),
    ],
)  # fmt: skip
def test_host_names_as_an_option(text: str, names: tuple[str, ...]) -> None:
    assert serve.command.make_context("serve", ["run", "--allowed-hosts", text]).params[
        "allowed_hosts"
    ] == names  # fmt: skip


@pytest.mark.parametrize("text", ["api.example.com:80", "http://api.example.com", "a.*.b", "[::1]"])
def test_host_names_that_are_none_are_refused(text: str) -> None:
    done = CliRunner().invoke(serve.command, ["run", "--allowed-hosts", text])
    assert done.exit_code == 2 and "not the name of a host" in done.output
