"""Passwords of addresses: shown by nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from flatout.cli.render import show
from flatout.cli.render.control_characters import VisibleConsole
from flatout.errors import RunFailed
from flatout.schema.addresses import masked, masked_document
from flatout.schema.finding import finding_from
from flatout.schema.plan import InstallPackages, Plan, PlanStep
from flatout.system import atomic_files
from flatout.system.http import without_password
from flatout.system.store import change_journal

_SECRET = "https://ann:s3cr:e+t@host:8080/simple"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (_SECRET, "https://ann:****@host:8080/simple"),
        ("https://t0ken@host/", "https://****@host/"),
        ("https://:pw@host/", "https://****@host/"),
        ("https://ann:p@ss@host/", "https://ann:****@host/"),
        (f"from {_SECRET}, {_SECRET}: refused", None),
        ("https://host/a@b?mail=x@y", "https://host/a@b?mail=x@y"),
        ("git@host:a/b, ann@host", "git@host:a/b, ann@host"),
        ("https://host:80/", "https://host:80/"),
        ("db://host/a?password=s3cr&x=1", "db://host/a?password=****&x=1"),
        ("db://host/a?x=1&amp;password=s3cr&amp;y=2", "db://host/a?x=1&amp;password=****&amp;y=2"),
    ],
)
def test_passwords_are_masked(text: str, shown: str | None) -> None:
    assert "s3cr" not in masked(text)
    if shown is not None:
        assert masked(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('get "http://host/?token=s3cr"', 'get "http://host/?token=****"'),
        ("http://host\nann@other", "http://host\nann@other"),
        ("https://ann:s3c\\r@host/", "https://ann:****@host/"),
    ],
)
def test_passwords_in_a_document_are_masked(text: str, shown: str) -> None:
    assert json.loads(masked_document(json.dumps({"a": [text, 1], "b": "c"}))) == {
        "a": [shown, 1], "b": "c",
    }  # fmt: skip


@pytest.mark.parametrize(
    "url", ["https://:pw@host:1/a", "https://a:pw@host:1/a", "https://a@host:1/a"]
)
def test_kept_address_has_neither_user_nor_password(url: str) -> None:
    assert without_password(url) == "https://host:1/a"


def test_console_shows_no_password() -> None:
    stream = io.StringIO()
    console = VisibleConsole(file=stream, width=60, highlight=False, markup=False)
    table = Table()
    table.add_column("where")
    table.add_row(_SECRET)
    table.add_row(Text(_SECRET, "bold"))
    for one in (_SECRET, Text.assemble(("index ", "bold"), _SECRET), table):
        console.print(one)
    assert "s3cr" not in stream.getvalue()
    assert stream.getvalue().count("****") == 4


def test_errors_and_json_hold_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    error = RunFailed(
        "download-failed", f"no {_SECRET}.", because=_SECRET, fix=f"--mirror {_SECRET}"
    )
    finding = finding_from(error)
    assert "s3cr" not in str(finding)
    show.print_json({"url": _SECRET})
    show.print_note(_SECRET)
    assert "s3cr" not in "".join(capsys.readouterr())


def test_journal_holds_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    words = ("install", "--index-url", _SECRET, "numpy")
    step = PlanStep(text="t", changes="c", action=InstallPackages(python="python", words=words))
    entry = change_journal.begin(
        Plan(goal="g", steps=(step,)), atomic_files.FileLock(tmp_path / "lock")
    )
    entry.close()
    assert b"s3cr" not in (entry.folder / "journal.jsonl").read_bytes()
