"""Which C++ compiler there is for torch.compile on a CPU."""

from __future__ import annotations

import os
import shutil
import sys

# What torch looks for where nothing is said.
_USUAL = {"win32": "cl", "darwin": "clang++"}


def missing_compiler() -> str | None:
    """The C++ compiler that torch would call, if it is not there; None if it is."""
    compiler = os.environ.get("CXX") or _USUAL.get(sys.platform, "g++")
    return compiler if shutil.which(compiler) is None else None
