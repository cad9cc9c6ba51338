"""`--config FILE.toml`: options by long names, `[set]` for parameters, `[use]` for the recipe."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, nearest
from flatout.schema.suggested_command import typed_value
from flatout.system.atomic_files import mapped_os_errors

SET, USE = "set", "use"
_TABLE = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*(?:([\w-]+)\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


class ConfigFile:
    """The content of a configuration file, and the lines of its keys.

    options: by their long names with dashes. settings, uses: as `name -> text`.

    Raises:
        UsageError: bad-config, and what keeps the file from being read.
    """

    def __init__(self, path: Path) -> None:
        # It takes 10 ms to import.
        import tomllib

        self.path = path
        with mapped_os_errors(path):
            content = path.read_bytes()
        try:
            # Editors on Windows put a byte order mark first.
            text = content.decode("utf-8-sig")
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                "bad-config", f"{path} is not valid TOML.", because=str(error), fix="correct it"
            ) from error
        self._lines = dict(_lines_of(text))
        self.settings = self._texts(tables.pop(SET, {}), SET)
        self.uses = self._texts(tables.pop(USE, {}), USE)
        self.options: dict[str, Any] = {}
        for key, value in tables.items():
            name = key.replace("_", "-")
            if name in self.options:
                raise self.wrong(key, f"`{name}` is set twice", fix="leave out one of them")
            self.options[name] = value

    def place(self, key: str, table: str = "") -> str:
        """The file, and the line of a key in it, or of its table."""
        names = [(table, key), (table, key.replace("-", "_")), ("", table)]
        line = next((self._lines[name] for name in names if name in self._lines), None)
        return f"{self.path}, line {line}" if line else str(self.path)

    def wrong(self, key: str, problem: str, *, fix: str, table: str = "") -> UsageError:
        """The error about a key."""
        return UsageError("bad-config", f"{self.place(key, table)}: {problem}.", fix=fix)

    def check_names(
        self, given: Iterable[str], names: Collection[str], what: str, table: str = ""
    ) -> None:
        """Refuses keys that are not among these names.

        Raises:
            UsageError: bad-config.
        """
        for key in given:
            if key not in names:
                raise self.wrong(
                    key, f"`{key}` is not {what}", fix=nearest(key, names), table=table
                )

    def _texts(self, values: Any, table: str) -> dict[str, str]:
        if not isinstance(values, dict):
            raise self.wrong(
                table, f"`{table}` is a table", fix=f"write [{table}], and its keys below it"
            )
        for key, value in values.items():
            if not isinstance(value, str | int | float | bool):
                raise self.wrong(
                    key, f"`{key}` needs a single value", fix="write a number, a text or a boolean",
                    table=table,
                )  # fmt: skip
        return {key: typed_value(value) for key, value in values.items()}


def _lines_of(text: str) -> Iterable[tuple[tuple[str, str], int]]:
    """(table, key) -> line. tomllib does not say where a key is."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = match[1]
            yield ("", table), number
        elif match := _KEY.match(line):
            yield (match[1] or table, match[2]), number
