"""Healthy machines in several languages: read, judged, recorded. The cases: tests/cases/machines.

Each file has its `source`, the `recording` of what commands and files gave, and by their paths some
of the facts that must come of it. What a source does not tell is filled in as such machines are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.doctor.api import MachineRecording as MachineRecording
from flatout.doctor.api import judge, recording_text, replay
from flatout.schema.machine import Machine
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import examine

CASES = sorted((Path(__file__).parents[1] / "cases" / "machines").glob("*.json"))
# None means "is not so" or "nothing is wrong" for these.
NO_REASON_NEEDED = {
    "host.wsl", "host.container", "memory.limit_bytes", "windows", "wsl", "module", "limits",
    "cuda_start", "problem", "build", "host.distribution", "num_mig_instances", "distro_toolkit",
    "packages",
}  # fmt: skip


def examined(path: Path) -> tuple[dict[str, Any], Machine]:
    """A case and its machine."""
    case = json.loads(path.read_text(encoding="utf-8"))
    system = RecordedSystem(msgspec.convert(case["recording"], SystemRecording))
    return case, examine(system).machine


def at(value: Any, path: str) -> Any:
    """What lies at `gpus.0.name`."""
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def unknowns(value: Any, place: str = "") -> list[str]:
    """Paths of everything that is None."""
    if value is None:
        return [place]
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    return [path for key, item in items for path in unknowns(item, f"{place}.{key}".lstrip("."))]


def test_there_are_enough_and_each_has_its_source() -> None:
    assert len(CASES) >= 14
    assert all(json.loads(path.read_text(encoding="utf-8"))["source"] for path in CASES)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_healthy_machine_has_no_finding_above_a_note(path: Path) -> None:
    _, machine = examined(path)
    found = judge(machine).diagnosis.findings
    assert [one.rule for one in found if one.severity != "note"] == []


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_facts_of_a_machine_are_as_expected(path: Path) -> None:
    case, machine = examined(path)
    facts = msgspec.to_builtins(machine)
    facts = json.loads(msgspec.json.encode(facts))
    assert {place: at(facts, place) for place in case["expect"]} == case["expect"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_everything_unknown_has_its_reason(path: Path) -> None:
    _, machine = examined(path)
    facts = json.loads(msgspec.json.encode(machine))
    facts["frameworks"] = []
    bare = {
        place for place in unknowns(facts)
        if place not in NO_REASON_NEEDED and place.rpartition(".")[2] not in NO_REASON_NEEDED
    }  # fmt: skip
    # A whole library or toolkit without a version is told by its path.
    assert {
        place for place in bare - machine.unread.keys() if not place.startswith("libraries.")
    } == set()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recording_says_the_same_and_not_whose_it_is(path: Path, tmp_path: Path) -> None:
    case, machine = examined(path)
    text = recording_text(machine)
    file = tmp_path / "machine.json"
    file.write_text(text, encoding="utf-8")
    assert replay(file).diagnosis == judge(machine).diagnosis
    for secret in ("someone", "José", "Núñez", "李", "王小明", "GPU-0"):
        assert secret not in text
    recorded = msgspec.json.decode(text, type=MachineRecording).machine
    assert recorded.driver == machine.driver
    assert [gpu.name for gpu in recorded.gpus] == [gpu.name for gpu in machine.gpus]
