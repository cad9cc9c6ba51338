"""Writes docs/rules from the rules: python3 tests/docs/rule_pages.py"""

from __future__ import annotations

from pathlib import Path

from flatout.doctor.rule_page import page_of
from flatout.doctor.ruleset import shipped_rules

RULESET = shipped_rules()

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "rules"


def pages() -> dict[str, str]:
    """File name -> text, for every rule."""
    return {f"{rule.id}.md": f"# {rule.id}\n\n{page_of(rule)}\n" for rule in RULESET.rules}


def main() -> None:
    """Writes what is missing or old, removes what has no rule."""
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
