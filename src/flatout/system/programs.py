"""Programs that may be on the path."""

from __future__ import annotations

import shutil


def find_conda() -> str | None:
    """mamba, micromamba or conda, the quickest first."""
    found = (shutil.which(name) for name in ("mamba", "micromamba", "conda"))
    return next((path for path in found if path), None)
