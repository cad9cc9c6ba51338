"""What was taken from a configuration file."""

from __future__ import annotations

import msgspec


class UsedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a file has set, and the command line has not.

    values: by name, as text, without passwords: `epochs`, `set.lr`, `use.precision`.
    """

    file: str
    values: dict[str, str]
