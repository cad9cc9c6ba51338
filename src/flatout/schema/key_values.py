"""Settings from the command line: texts of the form `key=value`."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.errors import UsageError


def split_pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """`key=value` texts as pairs; each key once.

    Raises:
        UsageError: bad-setting, set-twice.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(
                "bad-setting",
                f"`{option} {text}` is not of the form name=value.",
                fix=f"write {option} {name or 'name'}=value, without spaces around `=`",
            )
        if name in pairs:
            raise UsageError(
                "set-twice",
                f"`{name}` is set twice: {pairs[name]} and {value}.",
                fix="give it once",
            )
        pairs[name] = value.strip()
    return list(pairs.items())
