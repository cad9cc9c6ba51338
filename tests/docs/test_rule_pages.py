"""docs/rules is what the rules' docstrings say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_rule_pages_are_those_of_the_rules() -> None:
    spec = importlib.util.spec_from_file_location("rule_pages", HERE / "rule_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = {path.name: path.read_text(encoding="utf-8") for path in module.FOLDER.glob("*.md")}
    assert there == module.pages(), "run python3 tests/docs/rule_pages.py"
