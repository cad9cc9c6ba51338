"""What files an index of packages has of a project."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import OpenerDirector

from flatout.system.system import Unread

_ASK_S = 15.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def files_of(project: str, place: str, opener: OpenerDirector) -> tuple[str, ...] | Unread:
    """Names of a project's files; why they cannot be read.

    Args:
        project: its name, as the index spells it in addresses.
        place: the index's address, or a folder with wheels.
        opener: what opens addresses.

    Source: https://packaging.python.org/en/latest/specifications/simple-repository-api/
    """
    folder = _local_folder(place)
    if folder is not None and not (folder / project).is_dir():
        return tuple(path.name for path in folder.glob(f"{project.replace('-', '_')}-*.whl"))
    page = folder / project / "index.html" if folder else None
    try:
        if page is not None:
            return _names(page.read_text(encoding="utf-8"), page.as_uri())
        url = f"{place.rstrip('/')}/{project}/"
        headers = {"Accept": _ACCEPT, "User-Agent": "flatout"}
        with opener.open(urllib.request.Request(url, headers=headers), timeout=_ASK_S) as response:
            text = response.read().decode(errors="replace")
            kind = response.headers.get_content_type()
    except (OSError, ValueError) as error:
        return Unread(str(getattr(error, "reason", None) or error))
    if kind.endswith("json"):
        try:
            return tuple(str(one["filename"]) for one in json.loads(text)["files"])
        except (ValueError, KeyError, TypeError) as error:
            return Unread(f"{url} answered with what is no list of files: {error}")
    return _names(text, url)


def _names(text: str, url: str) -> tuple[str, ...]:
    """The files that a page links to."""
    links = re.findall(r"""<a\b[^>]*\bhref\s*=\s*["']([^"']+)["']""", text, re.IGNORECASE)
    return tuple(unquote(urlsplit(urljoin(url, link)).path).rpartition("/")[2] for link in links)


def _local_folder(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if "://" in place else Path(place)
