"""Lines found in a file that is not read as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.errors import RunFailed
from flatout.system.store.jsonl_scan import each_line, each_part, last_line

WORDS = st.sampled_from(["progress", "validated", "epochended", "pro"])


@given(st.lists(WORDS), st.sampled_from(["", '{"kind": "prog']), WORDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_each_and_last_line_find_what_a_look_at_every_line_finds(
    tmp_path: Path, kinds: list[str], torn: str, word: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"kind": kind, "step": step} for step, kind in enumerate(kinds)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    wanted = [line for line in lines if line["kind"] == word]
    sought = f'"{word}"'.encode()
    assert list(each_line(path, dict[str, Any], [sought])) == wanted
    assert last_line(path, dict[str, Any], sought) == (wanted[-1] if wanted else None)
    assert list(each_line(path, dict[str, Any])) == lines
    assert last_line(path, dict[str, Any]) == (lines[-1] if lines else None)


def test_lines_when_the_file_is_larger_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open(path, "w") as file:
        for step in range(12_000):
            kind = "validated" if step in (0, 5_000, 9_999) else "progress"
            file.write(json.dumps({"kind": kind, "step": step, "more": "x" * 900}) + "\n")
    assert path.stat().st_size > 2 * 4 * 2**20
    found = each_line(path, dict[str, Any], [b'"validated"'])
    assert [line["step"] for line in found] == [0, 5_000, 9_999]
    assert [line["step"] for line in each_line(path, dict[str, Any])] == list(range(12_000))
    for word, step in ((b"", 11_999), (b'"validated"', 9_999)):
        line = last_line(path, dict[str, Any], word)
        assert line is not None and line["step"] == step


def test_parts_are_read_on_where_the_last_one_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open(path, "w") as file:
        for step in range(3_000):
            kind = "validated" if step % 1000 == 999 else "progress"
            file.write(json.dumps({"kind": kind, "step": step, "more": "x" * 900}) + "\n")
        file.write('{"kind": "validated", "step"')
    parts = list(each_part(path, dict[str, Any], [b'"validated"'], 0))
    assert len(parts) > 2 and parts[-1][1] == path.read_bytes().rindex(b"\n") + 1
    assert [line["step"] for lines, _ in parts for line in lines] == [999, 1999, 2999]
    for lines, end in parts:
        rest = list(each_part(path, dict[str, Any], [b'"validated"'], end))
        later = [line for lines, at in parts if at > end for line in lines]
        assert [line for lines, _ in rest for line in lines] == later
    # Cut back and grown again since, a file may have a line there: it is left out.
    (found, _) = next(each_part(path, dict[str, Any], [b"step"], 10))
    assert found[0]["step"] == 1


def test_parts_when_a_torn_line_is_completed_in_between(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    parts = each_part(path, dict[str, Any], [b""], 0)
    assert next(parts) == ([{"step": 1}], 12)
    with open(path, "ab") as file:
        file.write(b'ep": 2}\n')
    assert list(parts) == []
    assert list(each_part(path, dict[str, Any], [b""], 12)) == [([{"step": 2}], 24)]


def test_lines_when_there_is_no_file(tmp_path: Path) -> None:
    assert list(each_line(tmp_path / "none", dict[str, Any])) == []
    assert last_line(tmp_path / "none", dict[str, Any]) is None


def test_each_line_when_one_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "progress"}\n{"kind": "validated" oops\n')
    assert list(each_line(path, dict[str, Any], [b'"progress"'])) == [{"kind": "progress"}]
    with pytest.raises(RunFailed) as caught:
        list(each_line(path, dict[str, Any]))
    assert caught.value.rule == "damaged-file"
