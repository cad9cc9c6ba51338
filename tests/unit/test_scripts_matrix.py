"""Which environments `scripts/test --matrix` makes, what is tested in them, and how it is told."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import matrix
import pytest
from progress import Done, Problem

INTEGRATION = Path(__file__).resolve().parents[1] / "integration"


def test_ends_have_every_python_and_the_oldest_and_newest_torch() -> None:
    ends = matrix.ends()
    assert [end.python for end in ends] == ["3.11", "3.12", "3.13", "3.14"]
    assert {end.torch for end in ends} == {matrix.OLDEST_TORCH, matrix.newest_torch()}


def test_ends_chosen_when_named() -> None:
    assert matrix.chosen("") == matrix.ends()
    named = matrix.chosen(f"py312-torch2.11,py313-torch{matrix.newest_torch()}")
    assert named == matrix.ends()[1:3]
    assert matrix.chosen("py314-torch2.13") == (matrix.End(python="3.14", torch="2.13"),)
    with pytest.raises(Problem, match="`2.11` does not name"):
        matrix.chosen("2.11")


def test_an_environment_that_is_made_needs_no_other_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "PLACE", tmp_path)
    found_none = Done(exit_code=0, output="{}", duration_s=0.0)
    monkeypatch.setattr(matrix, "run", lambda *words: found_none)
    end = matrix.End(python="3.12", torch="2.11.0")
    assert isinstance(matrix.find_interpreters([end], tmp_path)[end], Problem)
    end.interpreter.parent.mkdir(parents=True)
    end.interpreter.touch()
    matrix._stamp(end).write_text(json.dumps(matrix._wanted(end)), encoding="utf-8")
    assert matrix.find_interpreters([end], tmp_path) == {end: str(end.interpreter)}


def test_tests_when_files_import_torch_or_the_engine() -> None:
    names = [Path(path).name for path in matrix.tests()]
    assert {"test_compiled.py", "test_engine_optim.py", "test_ranks_sharded.py"} <= set(names)
    # It makes environments, and imports neither.
    assert "test_environments.py" not in names
    assert not set(names) & set(matrix.LEFT_OUT)


def test_names_of_what_is_left_out_and_added_are_there() -> None:
    for name in matrix.LEFT_OUT:
        assert matrix._imports_the_engine(INTEGRATION / name), name
    for one in matrix.MORE:
        name, _, function = one.partition("::")
        tree = ast.parse((INTEGRATION / name).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_tools_of_the_tests_are_asked_for_as_the_project_does() -> None:
    wanted = matrix._wanted(matrix.End(python="3.12", torch="2.11.0"))
    assert "torch==2.11.0" in wanted
    for tool in matrix._TOOLS:
        assert any(line.startswith(f"{tool}>=") for line in wanted), tool
