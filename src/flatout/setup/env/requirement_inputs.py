"""Reads the requirement files that the user names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.setup.env.requirement_files import (
    Requirements,
    from_conda,
    from_pyproject,
    not_readable,
)
from flatout.system import text_input


def read_files(files: Sequence[str]) -> Requirements:
    """The requirements of all these files together.

    Raises:
        UsageError: requirements-not-readable, pyyaml-not-installed.
    """
    read = []
    digest = hashlib.sha256()
    for name in files:
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise not_readable(name, "no such file")
        content = b"".join(text_input.pieces_of(path))
        digest.update(content)
        read.append(_read(path, content.decode(errors="replace")))
    return Requirements(
        lines=tuple(line for requirements in read for line in requirements.lines),
        python=next((requirements.python for requirements in read if requirements.python), None),
        left_out=tuple(line for requirements in read for line in requirements.left_out),
        sha256=digest.hexdigest() if files else None,
    )


def _read(path: Path, text: str) -> Requirements:
    if path.suffix == ".toml":
        return from_pyproject(text, str(path))
    if path.suffix in (".yml", ".yaml"):
        return from_conda(_yaml(text, path), str(path))
    # pip and uv read it themselves, with all that such a file may hold.
    return Requirements(lines=(f"-r {path}",))


def _yaml(text: str, path: Path) -> object:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            "pyyaml-not-installed",
            f"{path.name} cannot be read without PyYAML.",
            fix="pip install 'flatout[conda]'",
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise not_readable(str(path), str(error)) from error
