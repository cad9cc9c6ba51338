"""The files of a project in an index of packages.

Sources: PEP 503 (pages of links), PEP 691 (the same as JSON).
"""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import OpenerDirector

import msgspec

from flatout.system import clock
from flatout.system.host_system import Unread
from flatout.system.http import without_password

_REQUEST_TIMEOUT_S = 10.0
_LONGEST_S = 30.0
_MOST_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 18
_HEADERS = {
    "Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5", "User-Agent": "flatout",
}  # fmt: skip


class _File(msgspec.Struct):
    filename: str


class _Page(msgspec.Struct):
    files: list[_File]


def files_of(project: str, index: str, opener: OpenerDirector) -> tuple[str, ...] | Unread:
    """Names of a project's files; why they cannot be read.

    Args:
        project: its name, as the index spells it in addresses.
        index: the index's address, or a folder with wheels.
        opener: what opens addresses.

    Returns:
        The names, none where the index has no such project.

    Source: https://packaging.python.org/en/latest/specifications/simple-repository-api/
    """
    folder = _local_folder(index)
    if folder is not None and not (folder / project).is_dir():
        return tuple(path.name for path in folder.glob(f"{project.replace('-', '_')}-*.whl"))
    page = folder / project / "index.html" if folder else None
    try:
        if page is not None:
            content, url = page.read_bytes(), page.as_uri()
        else:
            url = f"{without_password(index).rstrip('/')}/{project}/"
            content = _downloaded(url, opener)
    except urllib.error.HTTPError as error:
        error.close()
        return () if _lacks(error, url) else Unread(f"HTTP {error.code} {error.reason}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Unread(_reason(error))
    try:
        return tuple(file_names(content))
    except ValueError as error:
        return Unread(f"{url}: {error}")


def _downloaded(url: str, opener: OpenerDirector) -> bytes:
    request = urllib.request.Request(url, headers=_HEADERS)
    started_s = clock.elapsed_s()
    content = bytearray()
    with opener.open(request, timeout=_REQUEST_TIMEOUT_S) as response:
        while chunk := response.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > _MOST_BYTES:
                raise ValueError("its page is too long for an index")
            if clock.elapsed_s() - started_s > _LONGEST_S:
                raise TimeoutError("it is too slow")
    return bytes(content)


def file_names(content: bytes) -> list[str]:
    """The names of the files on an index's page, HTML or JSON.

    Raises:
        ValueError: it is no such page.
    """
    if content.lstrip()[:1] == b"{":
        try:
            return [file.filename for file in msgspec.json.decode(content, type=_Page).files]
        except msgspec.DecodeError as error:
            raise ValueError(f"its JSON is not that of a package index: {error}") from error
    text = content.decode(errors="replace")
    links = re.findall(r"""<a\b[^>]*\bhref\s*=\s*["']([^"']+)["']""", text, re.IGNORECASE)
    names = [unquote(urlsplit(link).path).rpartition("/")[2] for link in links]
    distributions = [name for name in names if name.endswith((".whl", ".tar.gz", ".zip"))]
    if not distributions:
        raise ValueError("it lists no packages")
    return distributions


def _lacks(error: urllib.error.HTTPError, url: str) -> bool:
    """Whether an index says that it has no such project."""
    # PyTorch's responds with 403 then; elsewhere that may be a proxy that lets no one through.
    is_torch = urlsplit(url).hostname == "download.pytorch.org"
    return error.code == 404 or (error.code == 403 and is_torch)


def _local_folder(index: str) -> Path | None:
    parts = urlsplit(index)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if "://" in index else Path(index)


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({reason.verify_message}); behind a company's proxy, "
            "set SSL_CERT_FILE to a file with its certificate"
        )
    return str(reason) or type(reason).__name__
