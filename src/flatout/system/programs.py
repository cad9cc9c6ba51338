"""Programs that may be on the path."""

from __future__ import annotations

import os
import shutil

from flatout.system import micromamba


def find_conda() -> str | None:
    """mamba, micromamba or conda, the quickest first; else the micromamba that flatout has.

    `mamba shell init` and `conda init` define a function in the shell, and name the program, which
    need not be on the path, in a variable.
    """
    on_path = (shutil.which(name) for name in ("mamba", "micromamba", "conda"))
    named = (shutil.which(os.environ.get(name, "")) for name in ("MAMBA_EXE", "CONDA_EXE"))
    return next((path for path in (*on_path, *named) if path), micromamba.find_own())
