"""Texts of the pages in each language, from one TOML file per language."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from flatout.schema.units import count_text

# The first is the default.
LANGUAGES = ("en", "es", "zh")


class Texts:
    """The texts of one language, by key: `runs.title`.

    Args:
        language: one of LANGUAGES.
        texts: all of them.
    """

    def __init__(self, language: str, texts: dict[str, str]) -> None:
        self.language = language
        self._texts = texts

    def text(self, key: str, /, **values: Any) -> str:
        """A text with its placeholders filled in."""
        return self._texts[key].format_map(values)

    def counted(self, key: str, num: int) -> str:
        """A text for that many: `KEY.one` or `KEY.other`, with {num}."""
        form = "one" if num == 1 else "other"
        return self._texts[f"{key}.{form}"].format(num=count_text(num))

    def named(self, group: str, name: str) -> str:
        """The text of a name of ours, such as a status; a name that is not ours stays as it is."""
        return self._texts.get(f"{group}.{name}", name)


@functools.cache
def texts_in(language: str) -> Texts:
    """The texts of a language."""
    file = resources.files("flatout.web").joinpath("texts", f"{language}.toml")
    return Texts(language, dict(_flat(tomllib.loads(file.read_text(encoding="utf-8")))))


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def chosen_language(kept: str | None, accepted: str) -> str:
    """The language of a page: the one that was chosen, else the best that the browser accepts.

    Args:
        kept: from the cookie, if any.
        accepted: the header Accept-Language: `es-MX,es;q=0.9,en;q=0.8`.
    """
    if kept in LANGUAGES:
        return kept
    best, best_quality = LANGUAGES[0], 0.0
    for part in accepted[:1000].split(","):
        name, _, rest = part.strip().partition(";")
        language = name.strip().lower().partition("-")[0]
        try:
            quality = float(rest.partition("=")[2]) if rest else 1.0
        except ValueError:
            continue
        if language in LANGUAGES and quality > best_quality:
            best, best_quality = language, quality
    return best
