"""`flatout web --export`: a copy of runs that needs no server."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markupsafe import escape
from support.web_runs import big_metrics, new_run, started, whole_run

from flatout.cli.main import run
from flatout.errors import UsageError
from flatout.schema.web_request import WebExport, WebExported
from flatout.system.store.static_copy import static_folder, without_folders
from flatout.web import api as web_api

_LINKS = re.compile(r'\b(?:href|src|action)="([^"]*)"')


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    return tmp_path


def export(folder: Path, *runs: str, conditions: tuple[str, ...] = ()) -> WebExported:
    return web_api.export(WebExport(folder=str(folder), runs=runs, conditions=conditions))


def pages(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
    }


def test_copy_has_all_pages_of_its_runs(tmp_path: Path) -> None:
    whole_run("digits-0001", 0.7)
    folder = whole_run("digits-0002", 0.8)
    whole_run("secret-0003")
    folder.log.write_text("rank 0")
    folder.rank_log(1).write_text("rank 1 is here")
    done = export(tmp_path / "copy", "digits-0002", "digits-0001")
    assert done.runs == ("digits-0001", "digits-0002")
    found = pages(tmp_path / "copy")
    assert set(found) == {
        "index.html", "compare.html", "runs/digits-0001/index.html", "runs/digits-0002/index.html",
        "runs/digits-0002/worker.rank1.log.html",
    }  # fmt: skip
    assert "rank 1 is here" in found["runs/digits-0002/worker.rank1.log.html"]
    assert "80.0 %" in found["runs/digits-0002/index.html"]
    assert not [name for name, text in found.items() if "secret" in text]
    assert Path(done.first) == tmp_path / "copy" / "index.html"
    files = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert done.num_files == len(files)


def test_links_lead_to_files_of_the_copy(tmp_path: Path) -> None:
    for name in ("digits-0001", "digits-0002", "x.y"):
        folder = whole_run(name)
        folder.log.write_text("x")
        folder.rank_log(1).write_text("y")
    copy = tmp_path / "copy"
    export(copy, "digits-0001", "digits-0002", "x.y")
    num_links = 0
    for name, text in pages(copy).items():
        for link in map(unescape, _LINKS.findall(text)):
            parts = urlsplit(link)
            assert not parts.scheme and not parts.netloc and not link.startswith("/"), link
            if parts.path:
                target = (copy / name).parent / unquote(parts.path)
                assert target.resolve().is_file(), f"{link} in {name}"
                num_links += 1
    assert num_links > 30


def test_copy_has_neither_scripts_nor_forms_nor_tokens(tmp_path: Path) -> None:
    whole_run("digits-0001")
    whole_run("digits-0002")
    export(tmp_path / "copy", "digits-0001", "digits-0002")
    for name, text in pages(tmp_path / "copy").items():
        for part in ("<script", "<form", "<button", "<input", "form_token", "chart.json"):
            assert part not in text, f"{part} in {name}"
        assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_copy_has_no_paths_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home-of-ann"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("FLATOUT_STATE", str(home / "state"))
    folder = whole_run("digits-0001")
    folder.log.write_text(f"reading {home / 'data'}")
    export(tmp_path / "copy", "digits-0001")
    for path in (tmp_path / "copy").rglob("*"):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for private in ("home-of-ann", str(folder.path), "/bin/python"):
            assert private not in text, f"{private} in {path}"
    log = (tmp_path / "copy" / "runs" / "digits-0001" / "index.html").read_text(encoding="utf-8")
    assert "reading ~" in log


def test_copy_has_no_folders_beyond_the_home_folder(tmp_path: Path) -> None:
    for name in ("digits-0001", "digits-0002"):
        folder = whole_run(name, file=f"/projects/ann/{name}.py", python=f"/opt/ann/{name}/python")
        folder.log.write_text(f"writing {folder.weights}")
    whole_run("digits-0003").header.write_text("{")
    export(tmp_path / "copy", "digits-0001", "digits-0002", "digits-0003")
    for path in (tmp_path / "copy").rglob("*"):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for private in ("/opt/ann", "/projects/ann", str(tmp_path)):
            assert private not in text, f"{private} in {path}"
    known = json.loads((tmp_path / "copy" / "runs/digits-0001/run.json").read_text("utf-8"))
    assert known["log"]["value"]["text"] == "writing digits-0001/weights.safetensors"
    assert "cannot be read" in pages(tmp_path / "copy")["runs/digits-0003/index.html"]


@pytest.mark.parametrize("home", ["/home/o'brien&co", "C:\\Users\\ann"])
def test_home_folder_in_every_form(home: str) -> None:
    names = {home: "~"}
    document = json.dumps([f"{home} and"])
    assert json.loads(without_folders(document, names)) == ["~ and"]
    assert without_folders(str(escape(f"{home} and")), names) == "~ and"


def test_documents_are_in_the_copy(tmp_path: Path) -> None:
    whole_run("digits-0001")
    export(tmp_path / "copy", "digits-0001")
    known = json.loads((tmp_path / "copy/runs/digits-0001/run.json").read_text(encoding="utf-8"))
    assert known["metrics"] == {"loss": 0.25, "accuracy": 0.9} and "run" not in known


def test_runs_are_chosen_by_conditions(tmp_path: Path) -> None:
    for number, accuracy in enumerate((0.7, 0.9, 0.8), 1):
        whole_run(f"digits-{number:04d}", accuracy)
    done = export(tmp_path / "copy", "digits-0001", conditions=("accuracy>0.85",))
    assert done.runs == ("digits-0001", "digits-0002")


def test_long_run_is_read_to_its_end(tmp_path: Path) -> None:
    big_metrics(new_run("long-0001", [started()]), 60_000)
    export(tmp_path / "copy", "long-0001")
    text = (tmp_path / "copy/runs/long-0001/index.html").read_text(encoding="utf-8")
    assert "so far" not in text and "<path" in text
    known = json.loads((tmp_path / "copy/runs/long-0001/run.json").read_text(encoding="utf-8"))
    assert known["charts"][0]["share_read"] == 1


def test_list_of_many_runs_has_several_pages(tmp_path: Path) -> None:
    names = [f"digits-{number:04d}" for number in range(1, 103)]
    for name in names:
        new_run(name)
    export(tmp_path / "copy", *names)
    found = pages(tmp_path / "copy")
    assert 'href="runs-2.html"' in found["index.html"]
    assert 'href="index.html"' in found["runs-2.html"]
    assert "compare.html" not in found


def test_damaged_run_is_exported(tmp_path: Path) -> None:
    whole_run("digits-0001").header.write_text("{")
    export(tmp_path / "copy", "digits-0001")
    text = pages(tmp_path / "copy")["runs/digits-0001/index.html"]
    assert "This run cannot be read." in text


@pytest.mark.parametrize(
    ("runs", "conditions", "rule"),
    [(("gone-0001",), (), "unknown-run"), ((), ("accuracy>2",), "no-run-matches")],
)
def test_runs_that_do_not_exist(
    tmp_path: Path, runs: tuple[str, ...], conditions: tuple[str, ...], rule: str
) -> None:
    whole_run("digits-0001")
    with pytest.raises(UsageError) as raised:
        export(tmp_path / "copy", *runs, conditions=conditions)
    assert raised.value.rule == rule and not (tmp_path / "copy").exists()


def test_folder_that_has_files(tmp_path: Path) -> None:
    whole_run("digits-0001")
    (tmp_path / "copy").mkdir()
    export(tmp_path / "copy", "digits-0001")
    with pytest.raises(UsageError) as raised:
        export(tmp_path / "copy", "digits-0001")
    assert raised.value.rule == "folder-not-empty"


def test_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), static_folder(tmp_path / "copy") as folder:
        folder.write("a/b.html", "x")
        raise ZeroDivisionError
    assert not [path for path in tmp_path.iterdir() if path.name != "state"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "a"], "--run needs --export"),
        (["--export", "x"], "choose the runs"),
        (["--export", "x", "--run", "a", "--port", "1"], "--port cannot be combined"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["web", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_export_prints_what_to_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_run("digits-0001")
    assert run(["web", "--export", str(tmp_path / "copy"), "--run", "digits-0001", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert Path(printed["first"]).is_file() and printed["runs"] == ["digits-0001"]
