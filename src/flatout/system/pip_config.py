"""Package sources from the settings of pip and uv, a user's or a company's.

uv reads none of pip's settings. A user who has set a mirror for pip means it for both.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flatout.schema.package_indexes import Indexes

# Variables of uv by the place they name; where one is set, it wins over pip's.
_UV_DEFAULTS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
# Files of CA certificates to trust, by the program that reads the variable.
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_UV_EXTRAS = ("UV_INDEX", "UV_EXTRA_INDEX_URL")


def read_indexes(environment: Mapping[str, str] = os.environ) -> Indexes:
    """The places to look for packages, by the environment's variables and pip's files."""
    pip = _pip_settings(environment)

    def words(name: str) -> list[str]:
        return pip.get(name, "").split()

    defaults = [environment[name] for name in _UV_DEFAULTS if environment.get(name)]
    extras = [word for name in _UV_EXTRAS for word in environment.get(name, "").split()]
    links = environment.get("UV_FIND_LINKS", "").replace(",", " ").split()
    certificates = [*(environment.get(name) for name in _CERTIFICATES), pip.get("cert")]
    return Indexes(
        default=next((_address(text) for text in [*defaults, *words("index-url")]), None),
        extra=tuple(dict.fromkeys(_address(text) for text in [*extras, *words("extra-index-url")])),
        find_links=tuple(dict.fromkeys([*links, *words("find-links")])),
        certificates=tuple(
            dict.fromkeys(path for path in certificates if path and Path(path).is_file())
        ),
        proxy=pip.get("proxy"),
        trusted_hosts=tuple(words("trusted-host")),
        python_mirror=environment.get("UV_PYTHON_INSTALL_MIRROR"),
    )


def _address(text: str) -> str:
    """uv lets an index be named: NAME=URL."""
    name, separator, url = text.partition("=")
    return url if separator and "/" not in name else text


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """pip's options by their long names; later places win, and the environment over all files.

    Source: https://pip.pypa.io/en/stable/topics/configuration/
    """
    settings: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # None there; and one that is broken, pip itself reports about.
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    if sys.platform == "win32":
        folders = [environment.get("PROGRAMDATA"), environment.get("APPDATA")]
        files = [Path(folder) / "pip" / "pip.ini" for folder in folders if folder]
        files.insert(1, home / "pip" / "pip.ini")
        files.append(Path(sys.prefix) / "pip.ini")
    else:
        systems = environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)
        config = environment.get("XDG_CONFIG_HOME") or str(home / ".config")
        files = [Path(folder) / "pip" / "pip.conf" for folder in systems if folder]
        files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", Path(config) / "pip/pip.conf"]
        if sys.platform == "darwin":
            files.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
        files.append(Path(sys.prefix) / "pip.conf")
    return [*files, Path(named)] if named else files
