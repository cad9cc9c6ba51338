"""The system-wide `flatout.toml`: a company's mirrors, defaults, and fixes that it forbids.

/etc/flatout/flatout.toml, or %ProgramData%\\flatout\\flatout.toml; FLATOUT_SITE names another file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.schema.site_policy import Site


def site_file() -> Path:
    """The path of the file, if there is one."""
    named = os.environ.get("FLATOUT_SITE", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA", r"C:\ProgramData")) / "flatout" / "flatout.toml"
    return Path("/etc/flatout/flatout.toml")


def read_site() -> Site:
    """The content of the file; nothing if there is none.

    Raises:
        UsageError: site-file-wrong.
    """
    path = site_file()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if os.environ.get("FLATOUT_SITE", "").strip():
            raise wrong(path, "FLATOUT_SITE names it, but the file does not exist") from None
        return Site()
    except OSError as error:
        raise wrong(path, error.strerror or str(error)) from error
    # It takes 10 ms to import, and few machines have such a file.
    import tomllib

    try:
        table = tomllib.loads(content.decode())
        if "file" in table:
            raise msgspec.ValidationError("Object contains unknown field `file`")
        site = msgspec.convert(table, Site)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(path, f"it is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise wrong(path, str(error).replace("`$.", "`").replace(" - at `$`", "")) from error
    for name, url in msgspec.structs.asdict(site.mirrors).items():
        if url is not None and "://" not in url:
            raise wrong(path, f"mirrors.{name} must be an address, but is `{url}`")
    if site.setup.folder is not None and not Path(expanded(site.setup.folder)).is_absolute():
        raise wrong(path, f"setup.folder must be an absolute path, but is `{site.setup.folder}`")
    if site.train.track:
        _check_trackers(path, site)
    return msgspec.structs.replace(site, file=str(path))


def _check_trackers(path: Path, site: Site) -> None:
    # Every command reads this file, and few of them send anything.
    from flatout.schema.tracking import parse_trackers

    try:
        parse_trackers(site.train.track)
    except UsageError as error:
        raise wrong(path, f"train.track: {error.problem}") from error


def expanded(folder: str) -> str:
    """A folder with the user's home and variables in it."""
    return os.path.expandvars(os.path.expanduser(folder))


def wrong(path: Path | str, because: str) -> UsageError:
    """Bad news of that file."""
    return UsageError(
        "site-file-wrong",
        f"{path} cannot be used.",
        because=because,
        fix="ask the administrator of this machine to fix it; FLATOUT_SITE can name another file",
    )
