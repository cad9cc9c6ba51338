"""Trainings on a GPU, in the lab of the integration tests. Without a GPU all of it is skipped."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

# cuBLAS reads it when CUDA is first used; without it products do not repeat bit for bit.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

_PATH = Path(__file__).parents[1] / "integration" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("integration_conftest", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
_LAB = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LAB)

plain, tell = _LAB.plain, _LAB.tell


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Skips aloud where there is no GPU that torch can use."""
    import torch

    if not torch.cuda.is_available():
        build = f"torch {torch.__version__}, built for CUDA {torch.version.cuda}"
        pytest.skip(f"needs a GPU that torch can use ({build}, sees none)")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A lab whose runs are on the GPU, deterministic unless told otherwise."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    made = _LAB.Lab()
    made.use = {"device": "cuda", "num_threads": 1, "deterministic": True}
    return made
