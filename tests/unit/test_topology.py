"""Which CPUs threads are kept on, by the files of real processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.schema.cpu_topology import Topology
from flatout.system.cpu_topology import (
    parse_cpu_list,
    parse_last_caches,
    parse_topology,
    read_topology,
)

CASES = sorted((Path(__file__).parents[1] / "cases" / "topology").glob("*.json"))


def topology(case: dict[str, Any]) -> Topology:
    siblings = case["siblings"]
    files = case["files"] | {
        f"system/cpu/cpu{cpu}/topology/thread_siblings_list": text + "\n"
        for text in siblings
        for cpu in parse_cpu_list(text)
    }
    capacities = {
        f"system/cpu/cpu{cpu}/cpu_capacity": f"{capacity}\n"
        for text, capacity in case["capacities"].items()
        for cpu in parse_cpu_list(text)
    }
    return parse_topology(parse_cpu_list(case["usable"]), (files | capacities).get)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_chosen_on(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    found = topology(case)
    assert found.shape == case["shape"]
    for value, text in case["chosen"].items():
        assert found.chosen(value) == tuple(sorted(parse_cpu_list(text))), value
        assert found.why_not(value) == case["why_not"].get(value), value


def test_parse_topology_when_a_container_hides_it() -> None:
    found = parse_topology([0, 1], {}.get)
    assert found.problem is not None and found.chosen("one-per-core") == ()
    assert found.why_not("one-per-core") == found.why_not("all") == found.problem


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set())]
)
def test_parse_cpu_list(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_read_topology_gives_cpus_or_why_not() -> None:
    found = read_topology()
    assert (found.problem is None) == bool(found.cpus)


def test_last_caches_are_counted_once() -> None:
    files = {}
    for cpu in range(4):
        for number, (level, size) in enumerate((("1", "48K"), ("2", "2048K"), ("3", "32M"))):
            shared = f"{cpu}" if level != "3" else "0-1" if cpu < 2 else "2-3"
            folder = f"system/cpu/cpu{cpu}/cache/index{number}"
            files |= {f"{folder}/level": f"{level}\n", f"{folder}/size": f"{size}\n",
                      f"{folder}/shared_cpu_list": f"{shared}\n"}  # fmt: skip
    assert parse_last_caches(range(4), files.get) == 2 * 32 * 2**20
    assert parse_last_caches([0], files.get) == 32 * 2**20
    assert parse_last_caches([0, 1], {}.get) == 0
