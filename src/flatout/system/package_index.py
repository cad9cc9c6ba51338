"""Pages of package indexes: asked for politely, kept for a day, through a company's network too.

Proxies are those of the environment (HTTPS_PROXY and its like). Certificates are trusted that the
operating system, SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or pip's own settings
name. Where pip or uv are told an index in place of the one that they know, that one is asked.
"""

from __future__ import annotations

import configparser
import hashlib
import http.client
import importlib
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from flatout.errors import FlatoutError
from flatout.system import clock, folders, site_file, store
from flatout.system.simple_index import HEADERS, file_names
from flatout.system.system import Unread

_LIMIT_S = 5.0
_KEPT_S = 24 * 3600.0
_MOST_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 18
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_BUNDLE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class IndexPage(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the files that an index had for a project, at a time (seconds since 1970)."""

    names: tuple[str, ...]
    read_at: float


def read_page(
    index: str | None, project: str, *, is_kept_enough: bool = True
) -> IndexPage | Unread:
    """What an index has for a project.

    Args:
        index: address of the index; None is the one that pip asks by itself.
        project: as its pages name it.
        is_kept_enough: a page that was read within a day will do.

    Returns:
        The page, empty where the index has no such project, or why it cannot be had.
    """
    place = index or default_index()
    if place is None:
        return Unread("no pip is here that knows where the index is")
    kept = _kept_file(place, project)
    if is_kept_enough and (page := _read_kept(kept)):
        return page
    address = f"{place.rstrip('/')}/{project}/"
    try:
        names = tuple(file_names(_download(address)))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (403, 404):
            return Unread(f"{_shown(address)}: HTTP {error.code} {error.reason}")
        # PyTorch's index answers 403 for what it does not have.
        names = ()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Unread(f"{_shown(address)}: {_told(error)}")
    page = IndexPage(names=names, read_at=clock.now_s())
    try:
        with store.mapped_os_errors(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(kept, page)
    except FlatoutError:
        pass  # It is asked again next time.
    return page


def _download(address: str) -> bytes:
    request = urllib.request.Request(address, headers=HEADERS)
    handler = urllib.request.HTTPSHandler(context=_trust())
    opener = urllib.request.build_opener(handler)
    started_s = clock.elapsed_s()
    content = bytearray()
    with opener.open(request, timeout=_LIMIT_S) as response:
        while chunk := response.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > _MOST_BYTES:
                raise ValueError("its page is longer than any index's")
            if clock.elapsed_s() - started_s > 4 * _LIMIT_S:
                raise TimeoutError("it is too slow")
    return bytes(content)


def _trust() -> ssl.SSLContext:
    # Windows' store, SSL_CERT_FILE and SSL_CERT_DIR are in it from the start.
    context = ssl.create_default_context()
    named = [os.environ.get(name, "") for name in _BUNDLE_VARIABLES]
    for path in dict.fromkeys([*named, *_pip_settings("cert")]):
        if path and Path(path).is_file():
            try:
                context.load_verify_locations(cafile=path)
            except ssl.SSLError as error:
                raise ValueError(f"{path} holds no certificates ({error.reason})") from error
    return context


def default_index() -> str | None:
    """The address of the index that pip asks: the person's, else the one that pip knows."""
    named = [os.environ.get(name, "") for name in _INDEX_VARIABLES]
    told = next((one for one in [*named, *_pip_settings("index-url")] if one), None)
    return told or site_file.read_site().mirrors.packages or _pips_index()


def _pips_index() -> str | None:
    try:
        known = importlib.import_module("pip._internal.models.index")
    except ImportError:
        return None
    return getattr(getattr(known, "PyPI", None), "simple_url", None)


def _pip_settings(key: str) -> Iterator[str]:
    """What pip's files say, the most particular one first."""
    named = os.environ.get("PIP_CONFIG_FILE")
    places = [Path(named)] if named else []
    if sys.platform == "win32":
        places.append(Path(sys.prefix) / "pip.ini")
        folders_of_windows = [os.environ.get(name) for name in ("APPDATA", "ProgramData")]
        places += [Path(folder) / "pip" / "pip.ini" for folder in folders_of_windows if folder]
    else:
        home = Path.home()
        places += [Path(sys.prefix) / "pip.conf", home / ".config/pip/pip.conf"]
        places += [home / ".pip/pip.conf", Path("/etc/pip.conf")]
    for place in places:
        parser = configparser.RawConfigParser()
        try:
            if parser.read(place, encoding="utf-8"):
                value = parser.get("global", key, fallback="").strip()
                if value:
                    yield value
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue  # pip itself says what is wrong with its file.


def _kept_file(index: str, project: str) -> Path:
    digest = hashlib.sha256(f"{index} {project}".encode()).hexdigest()[:16]
    return folders.state_folder() / "indexes" / f"{project}-{digest}.json"


def _read_kept(path: Path) -> IndexPage | None:
    try:
        page = store.read_json(path, IndexPage) if path.is_file() else None
    except FlatoutError:
        return None
    return page if page and 0 <= clock.now_s() - page.read_at < _KEPT_S else None


def _shown(address: str) -> str:
    """An address without the name and password that a company's index may have in it."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _told(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({reason.verify_message}); where a company's proxy is "
            "between, set SSL_CERT_FILE to a file with its certificate"
        )
    return str(reason) or type(reason).__name__
