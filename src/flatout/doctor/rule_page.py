"""The page of a rule, in Markdown, made from its data."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from flatout.doctor.rule import Rule
from flatout.doctor.rule_data import FixData, ShellBySystem, Text

# So many messages of a signature are quoted, and so many in all.
_MOST_OF_ONE = 3
_MOST_MESSAGES = 12
_ARTICLES = ("A", "An", "The", "This", "No", "One", "Several", "Another", "Install", "Remove")
_SAFETY = {
    "safe": "flatout can do this",
    "ask": "flatout asks first",
    "manual": "by hand",
}


def page_of(rule: Rule) -> str:
    """Problem, what it is recognized by, why it matters, example, fixes and sources."""
    data = rule.data
    parts = [
        "\n\n".join(_variants(data.problem)),
        *([] if data.because is None else [f"**Because** {' / '.join(_variants(data.because))}."]),
        f"**Recognized by.** {'; '.join(_signs(rule))}.",
        f"**Why it matters.** {data.why}",
        f"**Example.**{_quoted(data.example)}",
        "\n".join(["**Fix.**", "", *_fixes(rule)]),
        f"**Source.** {'; '.join(data.sources)}.",
    ]
    return "\n\n".join(parts)


def _variants(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(variant.text for variant in text)


def _quoted(example: str) -> str:
    """A text as code, as a block if it has several lines."""
    return f"\n\n```\n{example}\n```" if "\n" in example else f" `{example}`"


def _signs(rule: Rule) -> Iterator[str]:
    """The messages and the facts that the rule looks for."""
    texts = [
        text
        for signature in rule.signatures
        if signature.id in (rule.triggers or rule.data.evidence)
        for text in signature.texts[:_MOST_OF_ONE]
    ]
    if texts:
        yield f"messages with {', '.join(f'`{text.strip()}`' for text in texts[:_MOST_MESSAGES])}"
    shared = sorted(
        {*(rule.triggers or rule.data.evidence)}
        - {signature.id for signature in rule.signatures}
        - {fact.sign for fact in rule.data.fact}
    )
    if shared:
        yield f"signs that other rules use too: {', '.join(shared)}"
    facts = list(dict.fromkeys(_docstring(fact.read) for fact in rule.data.fact))
    if facts:
        yield f"on the machine: {', '.join(facts)}"


def _docstring(name: str) -> str:
    module, _, function = name.partition(".")
    found = getattr(importlib.import_module(f"flatout.doctor.computed.{module}"), function)
    line: str = found.__doc__.partition("\n")[0].rstrip(".")
    first = line.split(" ", 1)[0]
    # Names such as `WSL` or `TensorFlow` keep their capitals.
    return line[:1].lower() + line[1:] if first in _ARTICLES else line


def _fixes(rule: Rule) -> Iterator[str]:
    for fix in rule.data.fix:
        condition = f" (if {fix.when})" if fix.when else ""
        text = " / ".join(_variants(fix.text)) or _docstring(str(fix.computed))
        yield f"- {text}{condition}; {_SAFETY['ask' if fix.computed else fix.safety]}"
        if fix.commands:
            yield from ("", *(f"      {command}" for command in fix.commands), "")
        yield from _notes(fix)


def _notes(fix: FixData) -> Iterator[str]:
    where = fix.where
    if isinstance(where, ShellBySystem):
        yield f"  Where: {where.wsl} under WSL, {where.elsewhere} elsewhere."
    elif where != "here":
        yield f"  Where: {where}."
    if fix.changes:
        yield f"  Changes: {' / '.join(_variants(fix.changes))}."
    if fix.undo:
        yield f"  Undo: {fix.undo}."
