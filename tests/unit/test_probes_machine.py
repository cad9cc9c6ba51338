"""Recorded machines: what the probes make of them. The cases are data: tests/cases/probes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.busy_machine import least_s

from flatout.schema.machine import Machine
from flatout.system.host_system import LocalSystem, RecordedSystem, SystemRecording
from flatout.system.probes.machine import probe

# What only the doctor asks: None, and without a reason, where a training probes.
NOT_ASKED = {
    "windows", "wsl", "module", "libraries", "toolkits", "disks", "environments", "engines",
    "network", "limits", "cuda_start", "packages", "variables",
}  # fmt: skip
# Of a GPU that an older recording was not asked about.
LATER = {
    "driver_model", "is_mig_on", "is_persistence_on", "has_display", "num_processes",
    "throttle_reasons", "num_mig_instances",
}  # fmt: skip
CASES = sorted((Path(__file__).parents[1] / "cases" / "probes").glob("*.json"))


def load(path: Path) -> tuple[SystemRecording, dict[str, Any]]:
    """A case's recording, and the machine it should be read as."""
    case = json.loads(path.read_text(encoding="utf-8"))
    return msgspec.convert(case["recording"], SystemRecording), case["machine"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_probe_when_recorded(path: Path) -> None:
    recording, expected = load(path)
    machine = json.loads(msgspec.json.encode(probe(RecordedSystem(recording))))
    assert machine.pop("read_at") == recording.read_at
    assert [machine.pop(name) for name in NOT_ASKED] == [None] * len(NOT_ASKED)
    for gpu in machine["gpus"]:
        assert {gpu.pop(name) for name in LATER} == {None}
    unread = machine["unread"]
    machine["unread"] = {
        path: why for path, why in unread.items() if path.rpartition(".")[2] not in LATER
    }
    assert machine == expected


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_probe_gives_a_reason_for_every_unknown(path: Path) -> None:
    machine = probe(RecordedSystem(load(path)[0]))
    # None means "is not so" for these, and needs no reason.
    no_reason_needed = {"host.wsl", "host.container", "memory.limit_bytes"}
    if machine.host.os == "macos":
        no_reason_needed.add("host.distribution")
    no_reason_needed |= NOT_ASKED
    unknown = {
        place
        for place in unknowns(msgspec.to_builtins(machine))
        if place and place.rpartition(".")[2] not in LATER
    }
    assert unknown - no_reason_needed <= machine.unread.keys()


def unknowns(value: Any, place: str = "") -> set[str]:
    """Paths of everything that is None."""
    if value is None:
        return {place}
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        # Frameworks go by their names, GPUs by their indices.
        items = [
            (item["name"] if "version" in item else str(index), item)
            for index, item in enumerate(value)
            if isinstance(item, dict)
        ]
    else:
        return set()
    below = (unknowns(item, f"{place}.{key}".lstrip(".")) for key, item in items)
    return set().union(*below)


def test_probe_survives_json_both_ways_when_here() -> None:
    machine = probe(LocalSystem())
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine
    assert machine.cpu.num_threads >= 1
    assert machine.memory.total_bytes


@pytest.mark.timing
def test_probe_is_quick_when_there_is_no_gpu() -> None:
    system = LocalSystem()
    if probe(system).gpus:
        pytest.skip("needs a machine without a GPU")
    assert least_s(lambda: probe(system), 0.3) < 0.3


def test_probe_asks_another_interpreter_when_reported() -> None:
    machine = probe(LocalSystem(), "/nowhere/python")
    assert machine.python == "/nowhere/python"
    assert machine.frameworks == ()
    assert machine.unread["frameworks"].startswith("/nowhere/python: ")
