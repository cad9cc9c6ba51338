"""Steps with the tensors of a GPU that is not there; where there is one, tests/gpu runs on it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(Path(__file__).parent), str(_BENCHMARKS)]


@pytest.fixture(autouse=True)
def no_gpu() -> None:
    """Skips aloud where torch is missing, or has a real GPU."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, which is not installed")
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU; where there is one, tests/gpu runs on it")
