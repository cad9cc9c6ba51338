"""Facts about the network."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact
from flatout.schema.machine import Machine


def name_lookup_failed(machine: Machine) -> Facts:
    """The name github.com could not be resolved."""
    if machine.network is None or machine.network.can_resolve is not False:
        return ()
    return fact("github.com cannot be resolved", "the name server")
