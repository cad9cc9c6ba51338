"""Interpreters that have what flatout's own has not: named by a variable, or this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest


@pytest.fixture
def interpreter_with() -> Callable[[str], str]:
    """Gives the interpreter for a package; skips the test, aloud, where there is none."""

    def find(package: str) -> str:
        variable = f"FLATOUT_TEST_{package.upper()}"
        if named := os.environ.get(variable):
            return named
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: name an interpreter that has it in {variable}")
        return sys.executable

    return find
