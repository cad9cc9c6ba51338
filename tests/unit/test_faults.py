"""Simulated machines: a healthy recording with a fault, and the rule that must see it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.doctor.api import judge, recording_text, replay
from flatout.doctor.diagnose import case_from_machine
from flatout.doctor.rule import Rule
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.machine import Machine
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import examine

RULESET = shipped_rules()

MACHINES = Path(__file__).parents[1] / "cases" / "machines"
FAULTS = tomllib.loads((MACHINES / "faults.toml").read_text(encoding="utf-8"))["case"]
WITH_FACT_CHECKS = [rule for rule in RULESET.rules if rule.fact_checks]


def machine_of(fault: dict[str, Any]) -> Machine:
    """The healthy machine with its fault."""
    case = json.loads((MACHINES / f"{fault['base']}.json").read_text(encoding="utf-8"))
    healthy = examine(RecordedSystem(msgspec.convert(case["recording"], SystemRecording))).machine
    facts = json.loads(msgspec.json.encode(healthy))
    for path in fault.get("unknown", ()):
        put(facts, path, None)
    for path, value in fault["facts"].items():
        put(facts, path, value)
    return msgspec.convert(facts, Machine)


def put(facts: Any, path: str, value: Any) -> None:
    """Sets the fact at `gpus.0.name`."""
    *parts, last = path.split(".")
    for part in parts:
        facts = facts[int(part)] if isinstance(facts, list) else facts[part]
    facts[last] = value


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{one['rule']}-{one['base']}" for one in FAULTS])
def test_fault_is_seen_in_the_facts_alone(fault: dict[str, Any], tmp_path: Path) -> None:
    machine = machine_of(fault)
    found = judge(machine).diagnosis.findings
    assert found[0].rule == fault["rule"], found
    assert all(str(one) for one in found[0].evidence)
    file = tmp_path / "machine.json"
    file.write_text(recording_text(machine), encoding="utf-8")
    assert replay(file).diagnosis.findings[0].rule == fault["rule"]


@pytest.mark.parametrize("rule", WITH_FACT_CHECKS, ids=lambda rule: rule.id)
def test_every_rule_that_reads_facts_has_its_machine(rule: Rule) -> None:
    assert rule.id in {fault["rule"] for fault in FAULTS}


@pytest.mark.parametrize("rule", WITH_FACT_CHECKS, ids=lambda rule: rule.id)
def test_reading_tells_the_fact_and_its_place(rule: Rule) -> None:
    for fault in FAULTS:
        if fault["rule"] == rule.id:
            machine = machine_of(fault)
            facts = [fact for one in rule.fact_checks for fact in one.read(machine)]
            assert facts
            assert all(fact.text and fact.where for fact in facts)


def test_sign_of_a_reading_is_asked_for_by_its_rule() -> None:
    signs = case_from_machine(Machine(), RULESET).signs
    assert {one.sign for rule in RULESET.rules for one in rule.fact_checks} <= set(signs)
