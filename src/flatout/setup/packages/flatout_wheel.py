"""flatout itself as a wheel, built from the running files: no index or network needed."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import msgspec

import flatout
from flatout.schema.environment import Pin
from flatout.setup.packages.wheel_store import digest_of, path_of, wheels_folder
from flatout.system import atomic_files

# Zip files know no time before; with the time of day each wheel would have another hash.
_TIME = (1980, 1, 1, 0, 0, 0)
_PACKAGE = Path(flatout.__file__).parent
# Files of a checkout that are in the package elsewhere; pyproject.toml says the same.
_BESIDE = {"install.sh": "setup/install.sh", "README.md": "docs/README.md"}


class _Project(msgspec.Struct):
    dependencies: tuple[str, ...]


class _File(msgspec.Struct):
    project: _Project


def requirements() -> tuple[str, ...]:
    """The requirements of flatout, without its extras."""
    checkout = _PACKAGE.parents[1] / "pyproject.toml"
    if checkout.is_file():
        text = checkout.read_text(encoding="utf-8")
        return msgspec.convert(tomllib.loads(text), _File, strict=False).project.dependencies
    try:
        lines = metadata.requires("flatout") or []
    except metadata.PackageNotFoundError:
        lines = []
    return tuple(line for line in lines if "extra ==" not in line)


def name_of(requirement: str) -> str:
    """The name in a requirement, as it is compared."""
    match = re.match(r"[\w.-]+", requirement)
    return (match[0] if match else requirement).lower().replace("_", "-").replace(".", "-")


def digest() -> str:
    """A hash of flatout's files."""
    hasher = hashlib.sha256()
    for name, content in _files():
        hasher.update(f"{name} {len(content)}\n".encode() + content)
    return hasher.hexdigest()[:24]


def build() -> Pin:
    """Builds the wheel in the folder of downloaded wheels."""
    version = flatout.__version__
    name = f"flatout-{version}-py3-none-any.whl"
    info = f"flatout-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requirements())
    files = [
        *_files(),
        (f"{info}/METADATA", (f"Metadata-Version: 2.1\nName: flatout\nVersion: {version}\n"
                              f"Requires-Python: >=3.11\n{needs}").encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: flatout\nRoot-Is-Purelib: true\n"
                          b"Tag: py3-none-any\n"),
        (f"{info}/entry_points.txt", b"[console_scripts]\nflatout = flatout.__main__:main\n"),
    ]  # fmt: skip
    record = "".join(f"{file},{_record_hash(content)},{len(content)}\n" for file, content in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    folder = wheels_folder() / "own"
    part = folder / f"{name}.part"
    with atomic_files.mapped_os_errors(part):
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files:
                archive.writestr(zipfile.ZipInfo(file, _TIME), content, zipfile.ZIP_DEFLATED)
        pin = Pin(
            name="flatout", version=version, url=f"file:///{name}", sha256=digest_of(part),
            size_bytes=part.stat().st_size,
        )  # fmt: skip
        path_of(pin).parent.mkdir(parents=True, exist_ok=True)
        atomic_files.sync_file(part)
        atomic_files.move_into_place(part, path_of(pin))
    return pin


def _files() -> list[tuple[str, bytes]]:
    """The package's files, by their names in a wheel, sorted."""
    with atomic_files.mapped_os_errors(_PACKAGE):
        paths = {
            path.relative_to(_PACKAGE).as_posix(): path for path in _PACKAGE.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        }  # fmt: skip
        if (_PACKAGE.parents[1] / "pyproject.toml").is_file():
            root = _PACKAGE.parents[1]
            paths |= {name: root / location for location, name in _BESIDE.items()}
            pages = (root / "docs").rglob("*.md")
            paths |= {path.relative_to(root).as_posix(): path for path in pages}
        return [(f"flatout/{name}", paths[name].read_bytes()) for name in sorted(paths)]


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest}"
