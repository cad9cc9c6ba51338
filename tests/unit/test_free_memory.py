"""What is left of the memory that a control group may take, in both versions' files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from flatout.system.free_memory import free_memory_bytes, left_in_groups_bytes


def written(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text + "\n", encoding="utf-8")


def test_a_group_above_may_have_the_least_left(tmp_path: Path) -> None:
    groups, own = tmp_path / "groups", tmp_path / "own"
    own.write_text("0::/outer/inner\n", encoding="utf-8")
    written(groups / "outer", memory__max="9000", memory__current="8000",
            memory__stat="anon 5000\ninactive_file 500\nactive_file 70")  # fmt: skip
    written(groups / "outer" / "inner", memory__max="max", memory__current="3000")
    # What is only a copy of a file is given up when it is needed.
    assert free_memory_bytes(groups, own) == 1500


def test_version_1_has_other_names(tmp_path: Path) -> None:
    groups, own = tmp_path / "groups", tmp_path / "own"
    own.write_text("7:cpu,cpuacct:/x\n4:memory:/docker/1\n", encoding="utf-8")
    written(groups / "memory", memory__limit_in_bytes="700", memory__usage_in_bytes="900",
            memory__stat="total_inactive_file 0")  # fmt: skip
    assert free_memory_bytes(groups, own) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's control groups")
def test_another_process_has_the_limits_of_its_own_group(tmp_path: Path) -> None:
    assert left_in_groups_bytes(os.getpid(), tmp_path) is None
    # The roots, which hold for whatever path the process has; of the version that is in use.
    written(tmp_path, memory__max="900", memory__current="300", memory__stat="")
    written(tmp_path / "memory", memory__limit_in_bytes="900", memory__usage_in_bytes="300")
    assert left_in_groups_bytes(os.getpid(), tmp_path) == 600


@pytest.mark.parametrize("text", ["0::/\n", "no such line\n", None])
def test_without_a_limit_it_is_the_machines(tmp_path: Path, text: str | None) -> None:
    own = tmp_path / "own"
    if text is not None:
        own.write_text(text, encoding="utf-8")
    free = free_memory_bytes(tmp_path / "groups", own)
    assert 0 < free <= psutil.virtual_memory().total
