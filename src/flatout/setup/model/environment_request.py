"""The options of `flatout setup` that describe an environment, and their checks."""

from __future__ import annotations

import re

import msgspec

from flatout.errors import UsageError
from flatout.schema.environment import Installer

_MIRRORS = ("packages", "torch", "python")


class EnvironmentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `flatout setup` that say how, where and what else.

    name, folder: of one environment. packages: texts of --with, with commas between requirements.
    files: of -r. lock: a requirements.lock, or a folder written by --bundle.
    bundle: a folder for the wheels; no environment is created. mirrors: `KIND=URL`.
    """

    name: str | None = None
    folder: str | None = None
    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    manager: Installer | None = None
    is_offline: bool = False
    lock: str | None = None
    bundle: str | None = None
    mirrors: tuple[str, ...] = ()

    def check(self, num_frameworks: int) -> None:
        """Refuses invalid or conflicting options. num_frameworks: how many were named.

        Raises:
            UsageError: options-exclude-each-other, bad-mirror.
        """
        for option, is_given, other in (
            ("--in", bool(self.folder) and num_frameworks > 1, "several frameworks"),
            ("--name", bool(self.name) and num_frameworks > 1, "several frameworks"),
            ("--from", bool(self.lock) and num_frameworks > 0, "a framework"),
            ("--from", bool(self.lock) and bool(self.files or self.packages), "`--with` or `-r`"),
            ("--bundle", bool(self.bundle) and self.is_offline, "`--offline`"),
            ("--bundle", bool(self.bundle) and num_frameworks > 1, "several frameworks"),
        ):
            if is_given:
                raise UsageError(
                    "options-exclude-each-other",
                    f"`{option}` and {other} cannot be given together.",
                    fix="leave one of them out",
                )
        for text in self.mirrors:
            kind, separator, url = text.partition("=")
            if kind not in _MIRRORS or not separator or "://" not in url:
                raise UsageError(
                    "bad-mirror",
                    f"`--mirror {text}` is not a valid mirror.",
                    fix="for data sets: flatout data get NAME --mirror URL"
                    if kind == "data"
                    else f"write KIND=URL, KIND one of {', '.join(_MIRRORS)}",
                )

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given, as they are typed; `--offline` aside."""
        options = {
            "--name": self.name, "--in": self.folder, "--with": self.packages, "-r": self.files,
            "--manager": self.manager, "--from": self.lock, "--bundle": self.bundle,
            "--mirror": self.mirrors,
        }  # fmt: skip
        return tuple(name for name, value in options.items() if value)

    def mirror(self, kind: str) -> str | None:
        """The address given for a kind of mirror."""
        return dict(text.split("=", 1) for text in self.mirrors).get(kind)

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements of --with. Commas in brackets, or before a version, are their own."""
        parts = (re.split(r",(?![^\[]*\])(?=\s*[A-Za-z])", text) for text in self.packages)
        return tuple(sorted({requirement.strip() for part in parts for requirement in part} - {""}))
