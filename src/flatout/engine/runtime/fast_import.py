"""Imports modules with garbage collection paused."""

from __future__ import annotations

import gc
import importlib
import sys

# Imported by the first update of any of torch's optimizers.
COMPILER = "torch._dynamo"


def import_quickly(*names: str) -> None:
    """Imports modules that stay as long as their process, as torch's do.

    Python's collector would look through what they are made of again and again while they are
    imported, and find nothing: a quarter of the time that torch and its compiler take
    (LOG.md, 2026-11-22). It never looks through them later either, nor through anything that is
    there by now: so this is for processes that are the engine's own, at their beginning.
    """
    missing = [name for name in names if name not in sys.modules]
    if not missing or not gc.isenabled():
        return
    gc.disable()
    try:
        for name in missing:
            importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()
