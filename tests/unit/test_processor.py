"""How many cores a process may use, by its cgroups."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from flatout.system.cpu_name import num_usable_cores
from flatout.system.usable_cpus import cpu_quota, num_usable_cpus

CASES: dict[str, tuple[dict[str, str], float]] = {
    "no cgroups": ({}, math.inf),
    "version 2 in a container": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        1.5,
    ),
    "version 2 without a limit": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
        math.inf,
    ),
    "version 2, limited by the group above": (
        {
            "proc/self/cgroup": "0::/user.slice/app.scope\n",
            "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/user.slice/app.scope/cpu.max": "max 100000\n",
        },
        4.0,
    ),
    "version 2, seen from a container with the host's name": (
        {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2.0,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "version 1 without a limit": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        math.inf,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_quota_is_read(name: str, tmp_path: Path) -> None:
    files, quota = CASES[name]
    for path, text in files.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    assert cpu_quota(tmp_path) == quota


def test_there_is_a_core() -> None:
    assert num_usable_cores() >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose")
def test_cpus_are_only_those_of_the_affinity() -> None:
    everywhere = os.sched_getaffinity(0)
    assert 1 <= num_usable_cores() <= num_usable_cpus() <= len(everywhere)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        assert num_usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, everywhere)
