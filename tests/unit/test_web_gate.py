"""Who may see the pages of `flatout web`, and who may change something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from support.web_runs import FORM_TOKEN, new_run, web_app, web_client, whole_run

from flatout.web.gate import GateRules

TOKEN = "s3cret-token"
OWN = {"origin": "http://127.0.0.1:8420"}
LANGUAGE = {"form_token": FORM_TOKEN, "language": "es", "back": "/runs"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8420", 200), ("localhost:9000", 200), ("[::1]:8420", 200), ("LOCALHOST", 200),
        ("evil.example:8420", 421), ("127.0.0.1.evil.example", 421), ("192.168.1.5:8420", 421),
        ("", 421), ("[::1", 421), ("localhost@evil.example", 421),
    ],
)  # fmt: skip
def test_page_by_host_name(host: str, status: int) -> None:
    assert web_client().get("/home", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [("192.168.1.5:8420", True), ("box.lan:8420", True), ("box", True), ("evil.example", False)],
)
def test_hosts_when_other_computers_can_connect(host: str, is_allowed: bool) -> None:
    assert GateRules(frozenset({"box"}), is_open=True, token=TOKEN).allows_host(host) is is_allowed


@pytest.mark.parametrize("path", ["/home", "/runs.json", "/chart.json", "/static/style.css", "/"])
def test_nothing_is_shown_without_the_token(path: str) -> None:
    answer = web_client(token=TOKEN).get(path)
    assert answer.status_code == 401 and "flatout web" in answer.text


def test_token_in_the_address_becomes_a_cookie() -> None:
    client = web_client(token=TOKEN)
    answer = client.get(f"/runs?access={TOKEN}")
    assert answer.status_code == 200 and 'content="0; url=/runs"' in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
    assert client.get("/runs").status_code == 200


@pytest.mark.parametrize("given", ["", "s3cret-toke", "s3cret-token2", "ä", "s3cret-token%00"])
def test_wrong_token_is_refused(given: str) -> None:
    answer = web_client(token=TOKEN).get(f"/home?access={given}")
    assert answer.status_code == 401 and "set-cookie" not in answer.headers


def test_token_as_cookie_value_is_refused() -> None:
    client = web_client(token=TOKEN)
    client.cookies.set("flatout_8420", TOKEN)
    assert client.get("/home").status_code == 401


def test_program_sends_the_token_in_a_header() -> None:
    client = web_client(token=TOKEN)
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/home.json", headers=headers).status_code == 200
    assert client.get("/home", headers={"authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "/a%22%3E%3Cscript%3E"])
def test_admission_goes_nowhere_else(path: str) -> None:
    answer = web_client(token=TOKEN).get(f"http://127.0.0.1:8420{path}?access={TOKEN}")
    assert "url=//" not in answer.text and "<script" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"origin": "null"}, {"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:1"},
        {"origin": "http://localhost:8420"}, {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
    ],
)  # fmt: skip
def test_change_from_another_site_is_refused(headers: dict[str, str]) -> None:
    answer = web_client().post("/language", data=LANGUAGE, headers=headers)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("headers", [OWN, {"sec-fetch-site": "same-origin"}])
def test_change_from_a_page_is_made(headers: dict[str, str]) -> None:
    answer = web_client().post("/language", data=LANGUAGE, headers=headers)
    assert answer.status_code == 303 and answer.headers["location"] == "/runs"
    assert "flatout_language=es" in answer.headers["set-cookie"]


def posting_routes() -> list[str]:
    """Addresses that take anything but GET."""
    routes = [route for route in starlette_app().routes if isinstance(route, Route)]
    return [route.path for route in routes if (route.methods or set()) - {"GET", "HEAD"}]


def starlette_app() -> Any:
    return web_app()._app


def test_every_change_needs_the_token_of_its_form() -> None:
    assert posting_routes() == [
        "/doctor/plan", "/doctor/undo", "/explain", "/explain.json", "/language", "/train",
        "/runs/{run}", "/serve",
    ]  # fmt: skip
    for path in posting_routes():
        for form in ({}, {"form_token": "x"}):
            answer = web_client().post(path, data={"x": "1", **form}, headers=OWN)
            assert answer.status_code == 403 and "web-form-expired" in answer.text


def test_form_without_a_length_gets_an_error_with_a_fix() -> None:
    headers = {**OWN, "content-type": "application/x-www-form-urlencoded"}
    answer = web_client().post("/language", content=iter([b"form_token=x"]), headers=headers)
    assert answer.status_code == 411 and "web-form-without-length" in answer.text
    assert "Content-Length" in answer.text and "too large" not in answer.text


def test_language_can_be_changed_when_read_only() -> None:
    answer = web_client(is_read_only=True).post("/language", data=LANGUAGE, headers=OWN)
    assert answer.status_code == 303
    assert "read-only" in web_client(is_read_only=True).get("/runs").text


def test_other_changes_are_refused_when_read_only() -> None:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse

    from flatout.web.application import _Pages
    from flatout.web.page import PageContext
    from flatout.web.run_cache import RunCache

    rules = GateRules(frozenset(), is_read_only=True, form_token=FORM_TOKEN)
    pages = _Pages(PageContext(runs=RunCache()), rules, lambda: False)
    route = pages.change("/stop", lambda request, form: PlainTextResponse("stopped"))
    answer = TestClient(Starlette(routes=[route])).post("/stop", data={"form_token": FORM_TOKEN})
    assert answer.status_code == 403 and "web-read-only" in answer.text


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "\\\\evil.example"])
def test_change_of_language_goes_back_to_this_server(back: str) -> None:
    answer = web_client().post("/language", data={**LANGUAGE, "back": back}, headers=OWN)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize("path", ["/home", "/runs.json", "/static/style.css", "/nothing"])
def test_every_answer_has_a_strict_policy(path: str) -> None:
    headers = web_client().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


@pytest.mark.parametrize(
    "path",
    [
        "/runs/%2e%2e", "/runs/%2e%2e%2fsecret", "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/.%2fdigits-0001", "/runs/%2fetc", "/runs/last", "/runs/digits", "/runs/a%00b",
        "/runs/..%5csecret", "/static/../texts/en.toml", "/static/%2e%2e/texts/en.toml",
        "/static/..%2fgate.py", "/runs/digits-0001/../../secret",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_runs(path: str, state: Path) -> None:
    whole_run()
    (state / "secret").mkdir()
    (state / "secret" / "run.json").write_text("{}")
    answer = web_client().get(path)
    assert answer.status_code in (400, 404)


def test_log_of_another_name_is_not_opened(state: Path) -> None:
    folder = whole_run()
    folder.log.write_text("own log")
    (state / "secret.log").write_text("SECRET")
    for name in ("../../secret.log", "run.json", str(state / "secret.log")):
        text = web_client().get("/runs/digits-0001", params={"log": name}).text
        assert "SECRET" not in text and "own log" in text


ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_names_and_logs_are_escaped() -> None:
    folder = new_run("digits-0001", name=ATTACK, parameters={ATTACK: ATTACK})
    folder.log.write_text(ATTACK)
    client = web_client()
    for path in ("/home", "/runs", "/runs/digits-0001", "/compare?run=digits-0001",
                 f"/runs?where={ATTACK}&sort={ATTACK}", f"/compare?run={ATTACK}",
                 f"/runs/{ATTACK.replace('/', '')}"):  # fmt: skip
        text = client.get(path).text
        assert "<script>alert" not in text and "<img" not in text, path
        assert "onerror" not in text or "&lt;img" in text


def test_templates_have_no_inline_script_or_style() -> None:
    folder = Path(__file__).parents[2] / "src" / "flatout" / "web" / "templates"
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert " style=" not in text and "<style" not in text and "|safe" not in text, path
        assert not [word for word in (" onclick", " onload", "javascript:", "://") if word in text]


def test_passwords_in_addresses_are_masked() -> None:
    folder = whole_run()
    text = 'fetching https://ann:secret@host/simple, "db://host/?user=ann&password=secret"'
    folder.log.write_text(text)
    client = web_client()
    assert "secret" not in client.get("/runs/digits-0001").text
    answer = client.get("/runs/digits-0001.json")
    assert "secret" not in answer.text and answer.json()["log"]["value"]["text"].endswith('****"')


def test_static_files_are_mounted_alone() -> None:
    mounts = [route.path for route in starlette_app().routes if isinstance(route, Mount)]
    assert mounts == ["/static"]
