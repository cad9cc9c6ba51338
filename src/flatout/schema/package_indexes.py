"""Package sources, and the settings that reach them."""

from __future__ import annotations

import msgspec


class Indexes(msgspec.Struct, frozen=True, kw_only=True):
    """The places where pip and uv look for packages, as a user's settings name them.

    default: instead of PyPI; None leaves it to the program. extra: searched as well.
    find_links: folders or pages with wheels. certificates: files of
    certificate authorities.
    trusted_hosts: hosts whose certificate is not looked at, as the user has set it.
    python_mirror: where uv gets interpreters.
    """

    default: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    python_mirror: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them that are addresses of an index."""
        return (*((self.default,) if self.default else ()), *self.extra)
