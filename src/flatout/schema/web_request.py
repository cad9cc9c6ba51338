"""The command line of `flatout web` as data, and what it answers."""

from __future__ import annotations

import msgspec

# Of the address that admits a browser. Not `token`: that is masked wherever an address is printed.
TOKEN_PARAMETER = "access"


class WebRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How the pages are served.

    host, port: to listen on; port 0 takes a free one. token: that a browser must show once; None
    makes one up, unless nothing can be changed and only this computer can connect.
    is_read_only: refuses every change of this machine and its runs.
    """

    host: str = "127.0.0.1"
    port: int = 8420
    token: str | None = None
    is_read_only: bool = False


class WebReady(msgspec.Struct, frozen=True, kw_only=True):
    """The pages can be opened.

    url: of the first page, with the token if one is needed. needs_token: then `url` must be kept
    secret.
    """

    url: str
    needs_token: bool
    is_read_only: bool


class WebExport(msgspec.Struct, frozen=True, kw_only=True):
    """Runs to copy as pages. folder: a new one. runs: ids or folders. conditions: as `flatout runs
    --where` has them; with both, runs that are named or match.
    """

    folder: str
    runs: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


class WebExported(msgspec.Struct, frozen=True, kw_only=True):
    """The copy. first: the file to open. runs: ids."""

    folder: str
    first: str
    runs: tuple[str, ...]
    num_files: int
