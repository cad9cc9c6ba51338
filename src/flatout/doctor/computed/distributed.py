"""Distributed training: Ray's versions compared, and the ports of this machine."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.machine import Machine


def ray_versions_differ(case: Case) -> RuleVerdict | None:
    """The printed Ray versions differ."""
    ours, theirs = (case.value("ray-versions", name) for name in ("ray", "other_ray"))
    if ours is None and case.sees("ray-version-mismatch"):
        return RuleVerdict(certainty="likely")
    if ours is not None and theirs is not None and ours != theirs:
        both = f"Ray {ours} and Ray {theirs} are both in use"
        return RuleVerdict(certainty="decided", because=both)
    return RuleVerdict(certainty="decided") if case.sees("ray-client-version") else None


def ray_python_versions_differ(case: Case) -> RuleVerdict | None:
    """The printed Python versions differ, or pickled functions cannot be read."""
    ours, theirs = (case.value("ray-versions", name) for name in ("python", "other_python"))
    if ours is not None and theirs is not None and ours != theirs:
        both = f"Python {ours} and Python {theirs} are both in use"
        return RuleVerdict(certainty="decided", because=both)
    if case.sees("ray-client-python"):
        return RuleVerdict(certainty="decided")
    is_pickled = case.sees("pickle-of-other-python") and case.sees("ray-named")
    return RuleVerdict(certainty="likely") if is_pickled else None


def rendezvous_port_is_in_use(machine: Machine) -> Facts:
    """A process is listening on torchrun's port, 29400 or 29500."""
    ports = (machine.network.busy_ports if machine.network else None) or ()
    busy = [port for port in ports if port in (29400, 29500)]
    return fact(f"a process is listening on {busy[0]}", "/proc/net/tcp") if busy else ()
