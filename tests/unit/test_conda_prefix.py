"""conda and mamba make their prefix in a folder that holds flatout's note already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.schema.package_indexes import Indexes
from flatout.setup.packages.installers import Conda, Pip

# What libmamba refuses: to create a prefix where files are, and to install where there is none.
MAMBA = """#!/bin/sh
while [ "$1" != --prefix ]; do
    case $1 in create) verb=create ;; install) verb=install ;; esac
    shift
done
if [ $verb = create ] && [ -n "$(ls -A "$2")" ]; then
    echo "critical libmamba Non-conda folder exists at prefix - aborting." >&2
    exit 1
fi
[ $verb = create ] || [ -f "$2/conda-meta/history" ] || exit 1
mkdir -p "$2/bin"
: >"$2/bin/python"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the made-up mamba is a program for sh")
def test_mamba_makes_a_prefix_beside_the_note(tmp_path: Path) -> None:
    mamba, folder = tmp_path / "mamba", tmp_path / "torch"
    mamba.write_text(MAMBA)
    mamba.chmod(0o755)
    folder.mkdir()
    (folder / "flatout-half-made.json").write_text("{}")
    indexes = Indexes()
    Conda(str(mamba), Pip(sys.executable, indexes), indexes).make(folder, "3.12", is_offline=True)
    assert (folder / "bin/python").exists() and (folder / "flatout-half-made.json").exists()
