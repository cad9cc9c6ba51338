"""`flatout docs`: every page can be read, and what its links have become can be typed."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.explain import page_by_id
from flatout.doctor.ruleset import shipped_rules
from flatout.errors import UsageError
from flatout.monitor.advice_words import WORDS
from flatout.system import doc_pages, pager
from flatout.system.store import error_pages

RULESET = shipped_rules()

ROOT = Path(__file__).resolve().parents[2]
ADVICE_FILES = [
    ROOT / "src/flatout/monitor" / name
    for name in ("advice.py", "advice_lines.py", "script_advice.py")
]
PAGES = list(doc_pages.list_pages())
_LINK = re.compile(r"\]\([^)]*\)")


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_are_commands_that_work(page: str) -> None:
    _, text = doc_pages.read_page(page)
    assert _LINK.findall(without_code(text)) == []
    ids = {*error_pages.read_pages(), *(rule.id for rule in RULESET.rules), "ID", "FILE"}
    for command, name in re.findall(r"`flatout (docs|explain) (\w[\w-]*)`", text):
        assert name in (PAGES + ["PAGE"] if command == "docs" else ids), name


def test_every_advice_of_a_profile_is_explained() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ADVICE_FILES]
    ids = {found for text in sources for found in re.findall(r'\bid="([a-z0-9-]+)"', text)}
    assert "tiny-operators" in ids
    for name in {*ids, *WORDS}:
        shown = page_by_id(name)
        assert shown.id == name and "**What to do.**" in shown.text
        # Sentences, but for names: `compiled=loss`, torch.compile.
        starts = re.findall(r"\*\*(?:Meaning|What to do)\.\*\* (\S+)", shown.text)
        assert len(starts) == 2
        assert all(re.match(r"[A-Z`]|torch", start) for start in starts), name


def test_every_page_of_the_documentation_is_there() -> None:
    files = {
        path.stem for path in (ROOT / "docs").rglob("*.md")
        if path.stem != "errors" and path.parent.name != "rules"
    }  # fmt: skip
    assert set(PAGES) == {*files, "readme"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert (shipped["docs"], shipped["README.md"]) == ("flatout/docs", "flatout/docs/README.md")


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[what is read](predict.md#in)", "what is read (`flatout docs predict`)"),
        ("[a log](../LOG.md)", "a log (LOG.md)"),
        ("[this](data.md#x) and [that](#y)", "this and that"),
        ("[no-data](errors.md#no-data)", "`flatout explain no-data`"),
        ("[one](rules/swap-off.md)", "one (`flatout explain swap-off`)"),
        ("[uv](https://docs.astral.sh/uv/)", "uv (https://docs.astral.sh/uv/)"),
        ("[examples/a.py](../examples/a.py)", "examples/a.py"),
        ("[its samples](../benchmarks/results)", "its samples (benchmarks/results)"),
        ('`updates["name"](loss)`', '`updates["name"](loss)`'),
        ("[`a`\nb](moving/from-lightning.md)", "`a`\nb (`flatout docs from-lightning`)"),
    ],
)
def test_a_link_becomes_what_to_type(link: str, shown: str) -> None:
    assert doc_pages.with_commands(link, "data", PAGES) == shown
    block = f"```text\n{link}\n```"
    assert doc_pages.with_commands(block, "data", PAGES) == block


@pytest.mark.parametrize("name", ["predict", "PREDICT.md", "docs/predict.md"])
def test_a_page_is_found_by_its_name_or_file(name: str) -> None:
    assert doc_pages.read_page(name)[0] == "predict"


def test_a_mistyped_page_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        doc_pages.read_page("predcit")
    assert refused.value.rule == "unknown-page" and "`predict`" in refused.value.fix


def test_docs_lists_and_shows_pages(cli: Any) -> None:
    listed = cli.run("docs")
    assert re.search(r"^predict +Using trained weights$", listed.stdout, re.MULTILINE)
    shown = cli.run("docs", "predict")
    assert shown.stdout.startswith("# Using trained weights\n") and "\x1b" not in shown.stdout
    document = json.loads(cli.run("docs", "predict", "--json").stdout)
    assert document["page"] == "predict" and document["text"].strip() == shown.stdout.strip()
    wrong = cli.run("docs", "no-data")
    assert wrong.returncode == 2 and "fix: flatout explain no-data" in wrong.stderr


def test_the_see_of_an_error_can_be_typed(cli: Any) -> None:
    wrong = cli.run("show", "nothing", "--json")
    error = json.loads(wrong.stdout)["error"]
    assert (error["rule"], error["see"]) == ("unknown-run", "flatout explain unknown-run")
    [see] = re.findall(r"^  see: (.*)$", wrong.stderr, re.MULTILINE)
    assert cli.run(*see.split()[1:]).stdout.startswith("unknown-run\n")


def test_a_pager_is_handed_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "keep.py"
    program.write_text(f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read())")
    python = sys.executable.replace(os.sep, "/")
    monkeypatch.setenv("PAGER", f"'{python}' '{program.as_posix()}'")
    assert pager.page("one\ntwo\n") and seen.read_text() == "one\ntwo\n"
    monkeypatch.setenv("PAGER", "")
    assert not pager.page("one")
