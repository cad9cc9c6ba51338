"""All probes together: the machine."""

from __future__ import annotations

from flatout.schema.machine import Machine
from flatout.system.host_system import System
from flatout.system.probes.cpu import probe_cpu
from flatout.system.probes.frameworks import probe_frameworks
from flatout.system.probes.gpus import probe_gpus
from flatout.system.probes.host import probe_host
from flatout.system.probes.memory import probe_memory


def probe(system: System, python: str | None = None) -> Machine:
    """Reads the machine; takes well under a second where no GPU has to be queried.

    Args:
        system: the machine, or a recording of one.
        python: the interpreter whose frameworks are looked up; flatout's own where None.
    """
    python = python or system.python
    host, host_unread = probe_host(system)
    cpu, cpu_unread = probe_cpu(system)
    memory, memory_unread = probe_memory(system)
    gpus = probe_gpus(system)
    frameworks, frameworks_unread = probe_frameworks(system, python)
    return Machine(
        read_at=system.now(),
        host=host,
        cpu=cpu,
        memory=memory,
        gpus=gpus.gpus,
        driver=gpus.driver,
        cuda=gpus.cuda,
        python=python,
        frameworks=frameworks,
        unread={**host_unread, **cpu_unread, **memory_unread, **gpus.unread, **frameworks_unread},
    )
