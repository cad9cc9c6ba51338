"""Files with a short life, for readers that take a path."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

_SUFFIX = re.compile(r"\.[a-z0-9]{1,12}")


class ScratchFiles:
    """A folder of temporary files, made with the first one; removed when the context ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        self._num_written = 0

    def __enter__(self) -> ScratchFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.cleanup()

    def write(self, content: bytes, suffix: str) -> Path:
        """Writes a file of a name of its own; a suffix that is not a plain one is left out."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="flatout-", ignore_cleanup_errors=True
            )
        self._num_written += 1
        ending = suffix if _SUFFIX.fullmatch(suffix) else ""
        path = Path(self._folder.name) / f"input-{self._num_written}{ending}"
        path.write_bytes(content)
        self._files.append(path)
        return path

    def clear(self) -> None:
        """Removes the files that were written; one that is still in use stays until the end."""
        for path in self._files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._files = []
