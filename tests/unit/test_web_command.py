"""`flatout web` as a command: its address, its end, and what it refuses."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flatout.errors import UsageError
from flatout.schema.web_request import WebRequest
from flatout.web import api as web_api


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches the tests as well")
def test_server_answers_until_ctrl_c(cli: Any) -> None:
    process = cli.start("web", "--port", "0", "--json")
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        ready = json.loads(text)
        base, _, token = ready["url"].partition("home?access=")
        assert ready["needs_token"] is True
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{base}runs.json", headers=headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["num_runs"] == 0
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}runs.json", timeout=120)
        assert refused.value.code == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("host", "token", "is_read_only", "needs_token"),
    [
        ("127.0.0.1", None, False, True), ("localhost", "x", False, True),
        ("0.0.0.0", None, False, True), ("127.0.0.1", None, True, False),
        ("127.0.0.1", "x", True, True), ("0.0.0.0", None, True, True),
    ],
)  # fmt: skip
def test_token_is_needed_unless_nothing_can_be_changed(
    host: str, token: str | None, is_read_only: bool, needs_token: bool
) -> None:
    request = WebRequest(host=host, port=0, token=token, is_read_only=is_read_only)
    with web_api.WebServer(request) as server:
        assert server.ready.needs_token is needs_token
        assert ("access=" in server.ready.url) is needs_token


def test_random_tokens_differ() -> None:
    request = WebRequest(port=0)
    with web_api.WebServer(request) as first, web_api.WebServer(request) as second:
        tokens = {server.ready.url.partition("access=")[2] for server in (first, second)}
    assert len(tokens) == 2 and all(len(token) >= 32 for token in tokens)


def test_token_with_signs_of_an_address() -> None:
    with web_api.WebServer(WebRequest(port=0, token="a&b#c%20/d")) as server:
        assert parse_qs(urlsplit(server.ready.url).query) == {"access": ["a&b#c%20/d"]}


def test_port_that_is_in_use() -> None:
    with web_api.WebServer(WebRequest(port=0)) as server:
        port = urlsplit(server.ready.url).port
        assert port is not None
        with pytest.raises(UsageError) as raised:
            web_api.WebServer(WebRequest(port=port))
    assert raised.value.rule == "port-in-use"


def test_shipped_uplot_has_its_licence_and_version() -> None:
    import tomllib

    folder = Path(web_api.__file__).parent / "static" / "uplot"
    pinned = tomllib.loads((folder / "uplot.toml").read_text(encoding="utf-8"))
    assert "MIT License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert pinned["version"] in (folder / "uPlot.iife.min.js").read_text(encoding="utf-8")[:300]
    assert len(pinned["sha512"]) == 88
