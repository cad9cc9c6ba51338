"""An environment kept by hard links, and put back."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.system.hardlink_copy import keep_tree, prune, restore_tree, tree_digest


def content(root: Path) -> dict[str, bytes | None]:
    """All paths below a folder but the kept ones and compiled Python."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if ".flatout" not in path.parts and "__pycache__" not in path.parts
    }


def make(root: Path) -> None:
    """Something like site-packages."""
    (root / "numpy" / "core").mkdir(parents=True)
    (root / "numpy" / "__init__.py").write_text("2")
    (root / "numpy" / "core" / "a.so").write_text("elf")
    (root / "empty").mkdir()
    if os.name == "posix":
        (root / "python").symlink_to("/usr/bin/python3")


def replace_packages(root: Path) -> None:
    """What pip does: old files go, new ones take their names, Python compiles some."""
    (root / "numpy" / "__init__.py").unlink()
    (root / "numpy" / "__init__.py").write_text("1.26")
    (root / "numpy" / "core" / "a.so").unlink()
    (root / "numpy" / "core").rmdir()
    (root / "numpy" / "core").write_text("now a file")
    (root / "empty").rmdir()
    (root / "scipy" / "__pycache__").mkdir(parents=True)
    (root / "scipy" / "__pycache__" / "x.pyc").write_text("")
    (root / "scipy" / "__init__.py").write_text("new")


def test_tree_is_put_back(tmp_path: Path) -> None:
    root, copy = tmp_path / "env", tmp_path / "env" / ".flatout" / "1"
    make(root)
    before, digest = content(root), tree_digest(root)
    keep_tree(root, copy)
    assert tree_digest(root) == digest
    replace_packages(root)
    assert tree_digest(root) != digest
    assert restore_tree(copy, root) == []
    assert content(root) == before and tree_digest(root) == digest
    assert not (root / "scipy").exists()


def test_tree_is_put_back_by_halves(tmp_path: Path) -> None:
    root, copy = tmp_path / "env", tmp_path / "env" / ".flatout" / "1"
    make(root)
    before = content(root)
    keep_tree(root, copy)
    replace_packages(root)
    # As if the first undo was killed when it had removed what was new.
    (root / "scipy" / "__init__.py").unlink()
    (root / "numpy" / "core").unlink()
    assert restore_tree(copy, root) == []
    assert content(root) == before


def test_only_what_was_replaced_stays_kept(tmp_path: Path) -> None:
    root, copy = tmp_path / "env", tmp_path / "env" / ".flatout" / "1"
    make(root)
    keep_tree(root, copy)
    (root / "numpy" / "__init__.py").unlink()
    (root / "numpy" / "__init__.py").write_text("1.26")
    prune(copy, root)
    assert [path.name for path in (copy / "files").rglob("*") if path.is_file()] == ["__init__.py"]
    (root / "numpy" / "core" / "a.so").unlink()
    assert restore_tree(copy, root) == [str(root / "numpy" / "core" / "a.so")]
    assert (root / "numpy" / "__init__.py").read_text() == "2"


def test_nothing_is_put_back_where_keeping_broke_off(tmp_path: Path) -> None:
    root, copy = tmp_path / "env", tmp_path / "env" / ".flatout" / "1"
    make(root)
    (copy / "files").mkdir(parents=True)
    before = content(root)
    assert restore_tree(copy, root) == []
    assert content(root) == before
