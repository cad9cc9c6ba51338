"""Modules are imported without looking for garbage; afterwards all is as before."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.engine.runtime.fast_import import import_quickly


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules can be imported from it."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    gc.enable()
    gc.unfreeze()
    for name in ("one_of_many", "one_that_raises"):
        sys.modules.pop(name, None)


def test_import_quickly_when_it_is_new_and_when_it_is_there(folder: Path) -> None:
    (folder / "one_of_many.py").write_text("import gc\nwas_looking = gc.isenabled()\n")
    import_quickly("one_of_many")
    assert sys.modules["one_of_many"].was_looking is False
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
    import_quickly("one_of_many")
    assert gc.get_freeze_count() == 0


def test_import_quickly_when_it_raises_or_nobody_looks_for_garbage(folder: Path) -> None:
    (folder / "one_that_raises.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError):
        import_quickly("one_that_raises")
    assert gc.isenabled()
    # Who has turned it off wants it off.
    gc.disable()
    import_quickly("one_that_raises")
    assert not gc.isenabled()
