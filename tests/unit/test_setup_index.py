"""Package indexes: what their pages list, what is asked of them, and what an update takes over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flatout.compat import api as compat_api
from flatout.compat.compat_update import families, newer_builds
from flatout.compat.fit import BuildRequest, Target, TargetGpu
from flatout.compat.index_check import IndexEntry, checked, wheel_project
from flatout.compat.index_listing import has_wheel, wheels
from flatout.compat.request import SetupRequest
from flatout.compat.rows import Build, Tables
from flatout.compat.tables import shipped_tables
from flatout.system import package_index, paths
from flatout.system.host_system import Unread
from flatout.system.package_index import IndexPage
from flatout.system.package_index_page import file_names

TABLES = shipped_tables()
LINUX = Target(
    os="linux", driver="580.95.05", gpus=(TargetGpu(name="RTX 3060", capability=(8, 6)),)
)
NAMES = [
    "torch-2.14.1+cu126-cp312-cp312-manylinux_2_28_x86_64.whl",
    "torch-2.14.1+cu126-cp312-cp312-win_amd64.whl",
    "torch-2.14.1+cu126-cp314-cp314t-manylinux_2_28_x86_64.whl",
    "torch-2.14.1+cu126-cp312-cp312-manylinux_2_28_aarch64.whl",
    "torchvision-0.29.0+cu126-cp312-cp312-win_amd64.whl",
    "torch-2.14.1.tar.gz",
]


def build(framework: str = "torch", cuda: str = "cu126", version: str = "2.14.1") -> Build:
    wanted = (framework, cuda, version)
    return next(one for one in TABLES.builds if (one.framework, one.cuda, one.version) == wanted)


class Pages(BaseHTTPRequestHandler):
    """An index on this machine: answers by path."""

    pages: dict[str, bytes] = {}
    asked: list[str] = []
    refused: set[str] = set()
    passwords: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.passwords += [self.headers["Authorization"]] if "Authorization" in self.headers else []
        content = self.pages.get(self.path)
        missing = 403 if self.path in self.refused else 404
        self.send_response(200 if content is not None else missing)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "data"))
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Pages.pages, Pages.asked, Pages.refused, Pages.passwords = {}, [], set(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def page(names: list[str]) -> bytes:
    return json.dumps({"files": [{"filename": name} for name in names]}).encode()


def test_file_names_of_both_kinds_of_page() -> None:
    links = "".join(
        f'<a href="/whl/cu126/{name.replace("+", "%2B")}#sha256=0">x</a>' for name in NAMES
    )
    assert file_names(f"<!DOCTYPE html><body>{links}</body>".encode()) == NAMES
    assert file_names(page(NAMES)) == NAMES
    for wrong in (b"<html>log in to this network</html>", b"{}", b'{"files": 1}', b""):
        with pytest.raises(ValueError):
            file_names(wrong)


def test_has_wheel_when_python_and_system_must_fit() -> None:
    found = list(wheels(NAMES, "torch"))
    assert len(found) == 4
    windows = replace(LINUX, os="windows")
    assert has_wheel(found, build(), (3, 12), LINUX)
    assert has_wheel(found, build(), (3, 12), windows)
    assert has_wheel(found, build(), (3, 12), replace(LINUX, machine="aarch64"))
    assert not has_wheel(found, build(), (3, 11), LINUX)
    # What there is for 3.14 is the build without the global lock.
    assert not has_wheel(found, build(), (3, 14), LINUX)
    assert not has_wheel(found, build(), (3, 12), replace(LINUX, os="macos"))
    assert not has_wheel(found, build(version="2.13.0"), (3, 12), LINUX)
    assert not has_wheel(found, build(cuda="cu130"), (3, 12), LINUX)


def test_wheel_project_when_a_plugin_decides() -> None:
    assert wheel_project(build("jax", "cu13", "0.12.0.1")) == "jax-cuda13-plugin"
    assert wheel_project(build("jax", "cpu", "0.12.0.1")) == "jaxlib"
    assert wheel_project(build("paddle", "cu118", "3.3.1")) == "paddlepaddle-gpu"


def test_checked_when_the_index_lacks_the_best() -> None:
    def look(build: Build, python: tuple[int, int], target: Target) -> IndexEntry:
        return IndexEntry(is_there=build.version != "2.15.0", message=f"asked for {build.version}")

    answer = checked(LINUX, BuildRequest(framework="torch"), TABLES, look)
    assert answer.choice and answer.choice.version == "2.14.1"
    assert answer.why[-1] == "asked for 2.14.1"
    assert any("2.15.0" in line and "not in its package index" in line for line in answer.ruled_out)


def test_checked_when_the_index_has_nothing() -> None:
    def look(build: Build, python: tuple[int, int], target: Target) -> IndexEntry:
        return IndexEntry(is_there=False, message="no")

    answer = checked(LINUX, BuildRequest(framework="torch"), TABLES, look)
    assert answer.choice is None and answer.ruled_out


def test_read_page_when_it_is_asked_once_a_day(index: str) -> None:
    Pages.pages["/torch/"] = page(NAMES)
    first = package_index.read_page(index, "torch")
    again = package_index.read_page(index, "torch")
    assert isinstance(first, IndexPage) and first == again
    assert first.names == tuple(NAMES)
    assert Pages.asked == ["/torch/"]
    package_index.read_page(index, "torch", may_use_cache=False)
    assert len(Pages.asked) == 2


def test_read_page_when_the_project_is_not_there(index: str) -> None:
    found = package_index.read_page(index, "nothing")
    assert isinstance(found, IndexPage) and found.names == ()


def test_read_page_when_something_else_answers(index: str) -> None:
    Pages.pages["/torch/"] = b"<html>Please log in to the hotel's network</html>"
    found = package_index.read_page(index, "torch")
    assert isinstance(found, Unread) and "lists no package" in found.reason


def test_read_page_when_nobody_answers(index: str) -> None:
    found = package_index.read_page("http://127.0.0.1:9", "torch")
    assert isinstance(found, Unread) and "127.0.0.1:9/torch" in found.reason


def test_read_page_when_a_mirror_stands_for_pypi(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pages.pages["/jaxlib/"] = page(["jaxlib-0.12.0-cp312-cp312-win_amd64.whl"])
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    found = package_index.read_page(None, "jaxlib")
    assert isinstance(found, IndexPage) and Pages.asked == ["/jaxlib/"]


def test_read_page_when_the_address_holds_a_password(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://name:secret@127.0.0.1:9/simple")
    found = package_index.read_page(None, "torch")
    assert isinstance(found, Unread) and "secret" not in found.reason


def test_read_page_when_a_proxy_lets_nobody_through(index: str) -> None:
    Pages.refused.add("/torch/")
    found = package_index.read_page(index, "torch")
    assert isinstance(found, Unread) and "403" in found.reason


def test_read_page_when_the_index_wants_a_password(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pages.pages["/torch/"] = page(NAMES)
    monkeypatch.setenv("PIP_INDEX_URL", index.replace("://", "://name:secret@"))
    found = package_index.read_page(None, "torch")
    assert isinstance(found, IndexPage) and found.names == tuple(NAMES)
    # "name:secret" in base64.
    assert Pages.passwords == ["Basic bmFtZTpzZWNyZXQ="]


def test_read_page_when_the_certificates_are_none(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("these are no certificates")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    found = package_index.read_page(index, "torch")
    assert isinstance(found, Unread) and "contains no certificates" in found.reason


# Updates.


def test_newer_builds_when_there_are_some() -> None:
    known = build()
    names = [*NAMES, "torch-2.16.0+cu126-cp312-cp312-manylinux_2_28_x86_64.whl",
             "torch-2.16.0+cu126-cp315-cp315-manylinux_2_28_x86_64.whl",
             "torch-2.17.0rc1+cu126-cp312-cp312-manylinux_2_28_x86_64.whl"]  # fmt: skip
    (newer,) = newer_builds(known, list(wheels(names, "torch")), date(2030, 1, 2))
    assert (newer.version, newer.python) == ("2.16.0", ((3, 12), (3, 15)))
    assert newer.codes == known.codes and newer.oses == ("linux", "wsl2")
    assert (newer.confidence, newer.read) == ("low", "2030-01-02")


def test_families_when_one_index_has_every_cuda() -> None:
    found = [(one.version, one.cuda) for one in families(TABLES)
             if one.framework == "tensorflow" and one.extra]  # fmt: skip
    assert found == [("2.21.0", "cu125")]
    jax = [one for one in families(TABLES) if one.framework == "jax" and one.extra]
    found = [(one.cuda, one.machine) for one in jax]
    assert sorted(found) == [("cu12", "aarch64"), ("cu12", "x86_64"), ("cu13", "aarch64"),
                             ("cu13", "x86_64")]  # fmt: skip
    assert {one.cuda for one in families(TABLES) if one.framework == "torch"} >= {"cu118", "cu130"}


def test_newer_builds_when_the_page_is_of_something_else() -> None:
    other = list(wheels(["torch-9.0.0+cu126-cp312-cp312-win_amd64.whl"], "torch"))
    with pytest.raises(ValueError, match="it lists no known version of torch"):
        newer_builds(build(), other, date(2030, 1, 2))


def local_tables(index: str) -> Tables:
    """The tables with every index on this machine."""
    builds = tuple(
        replace(one, index=f"{index}/{one.cuda}") for one in TABLES.builds if not one.is_nightly
    )
    return replace(TABLES, builds=builds)


def test_update_compat_when_an_index_has_more(index: str) -> None:
    known = "torch-2.15.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl"
    newer = "torch-2.16.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl"
    Pages.pages["/cu130/torch/"] = page([known, newer])
    tables = local_tables(index)
    state = compat_api.update_compat(tables)
    assert state.num_added == 1
    assert state.tables[0].newest == "2.16.0"
    assert state.not_reached
    request = SetupRequest(cards=("RTX 3060",), driver="580.95.05", is_offline=True)
    choice = compat_api.choose(request, tables).answers[0].choice
    assert choice and choice.version == "2.16.0"
    # A file that somebody has spoilt is not used.
    paths.compat_update_file().write_text('{"update_version": 1, "builds": "none"}')
    assert compat_api.compat_state(shipped=tables).num_added == 0
