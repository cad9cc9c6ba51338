"""The wheels that an installer has resolved: from uv's `pylock.toml`, or from pip's report."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

import msgspec

from flatout.errors import UsageError
from flatout.schema.environment import Pin


class _Wheel(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}
    url: str | None = None
    path: str | None = None
    size: int | None = None


class _Package(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    wheels: tuple[_Wheel, ...] = ()
    archive: _Wheel | None = None


class _Pylock(msgspec.Struct, frozen=True):
    packages: tuple[_Package, ...] = ()


class _Archive(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct, frozen=True):
    url: str
    archive_info: _Archive = _Archive()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    version: str


class _Install(msgspec.Struct, frozen=True):
    metadata: _Metadata
    download_info: _Download


class _Report(msgspec.Struct, frozen=True):
    install: tuple[_Install, ...] = ()


def supported_tags(python: tuple[int, int]) -> list[str]:
    """The tags of wheels that run here under that version of CPython, best first."""
    from packaging import tags

    interpreter = f"cp{python[0]}{python[1]}"
    wheel_tags = [*tags.cpython_tags(python), *tags.compatible_tags(python, interpreter)]
    return [str(tag) for tag in wheel_tags]


def parse_pylock(text: str, folder_url: str, tags: Sequence[str]) -> tuple[Pin, ...]:
    """The wheels that fit, of each package in a lock of uv's.

    Args:
        text: TOML. Source: https://packaging.python.org/en/latest/specifications/pylock-toml/
        folder_url: of its folder, as `file://...`: relative paths in it start there.
        tags: of wheels that can be used, best first.

    Raises:
        UsageError: no-wheel.
    """
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    lock = msgspec.convert(tomllib.loads(text), _Pylock, strict=False)
    return tuple(_pin(package, folder_url, ranks) for package in lock.packages)


def parse_report(text: str) -> tuple[Pin, ...]:
    """The wheels in the output of `pip install --report`; a missing hash is "".

    Source: https://pip.pypa.io/en/stable/reference/installation-report/
    """
    report = msgspec.json.decode(text, type=_Report)
    return tuple(
        Pin(
            name=_plain(item.metadata.name),
            version=item.metadata.version,
            url=item.download_info.url,
            sha256=item.download_info.archive_info.hashes.get("sha256", ""),
        )
        for item in report.install
    )


def is_for_cpu(pins: Sequence[Pin]) -> bool:
    """Whether none of the packages belongs to CUDA."""
    # nvidia-ml-py only queries the driver, and is in every environment that has flatout.
    prefixes = ("nvidia-", "cuda-", "jax-cuda")
    return not any(pin.name.startswith(prefixes) for pin in pins if pin.name != "nvidia-ml-py")


def _pin(package: _Package, folder_url: str, ranks: dict[str, int]) -> Pin:
    wheels = [*package.wheels, *([package.archive] if package.archive else [])]
    ranked = [(rank, _url(wheel, folder_url), wheel) for wheel in wheels
              if (rank := _rank(_file(wheel), ranks)) is not None]  # fmt: skip
    if not ranked:
        raise UsageError(
            "no-wheel",
            f"{package.name} {package.version} has no wheel for this system and this Python.",
            because=f"available: {', '.join(_file(wheel) for wheel in wheels) or 'only sources'}",
            fix="choose another --python, or another version; flatout does not compile packages",
        )
    _, url, wheel = min(ranked, key=lambda ranking: ranking[0])
    return Pin(
        name=_plain(package.name),
        version=package.version or _file(wheel).split("-")[1],
        url=url,
        sha256=wheel.hashes.get("sha256", ""),
        size_bytes=wheel.size,
    )


def _url(wheel: _Wheel, folder_url: str) -> str:
    if wheel.url:
        return wheel.url
    path = wheel.path or ""
    return f"file://{path}" if path.startswith("/") else f"{folder_url}/{path}"


def _file(wheel: _Wheel) -> str:
    return (
        unquote(urlsplit(wheel.url or wheel.path or "").path).replace("\\", "/").rpartition("/")[2]
    )


def _rank(file: str, ranks: dict[str, int]) -> int | None:
    """The rank of the best of a wheel's tags; None if none of them is supported."""
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or len(parts) < 5:
        return None
    tags = [f"{python}-{abi}-{platform}" for python in parts[-3].split(".")
            for abi in parts[-2].split(".") for platform in parts[-1].split(".")]  # fmt: skip
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
