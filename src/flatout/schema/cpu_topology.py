"""The CPUs that share a core, and those on fast cores."""

from __future__ import annotations

from collections import Counter

import msgspec

from flatout.schema.recipe import CpuAffinity


class LogicalCpu(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware thread, which the kernel calls a CPU.

    index: the kernel's number of it. core: the same text for all that share a core.
    """

    index: int
    core: str
    is_performance: bool = True


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs that this process may use, sorted by their numbers.

    problem: why it is not known which of them share a core; then none are listed.
    """

    cpus: tuple[LogicalCpu, ...] = ()
    problem: str | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers of all of them."""
        return tuple(cpu.index for cpu in self.cpus)

    @property
    def is_hybrid(self) -> bool:
        """Whether there are cores of two kinds."""
        return len({cpu.is_performance for cpu in self.cpus}) == 2

    def chosen(self, affinity: CpuAffinity) -> tuple[int, ...]:
        """The CPUs that threads are to run on: of a core the one with the smallest number.

        All of them, where the value makes no difference.
        """
        if affinity == "all" or self.why_not(affinity) is not None:
            return self.indices
        first: dict[str, int] = {}
        for cpu in self.cpus:
            if affinity == "one-per-core" or cpu.is_performance:
                first.setdefault(cpu.core, cpu.index)
        return tuple(first.values())

    def why_not(self, affinity: CpuAffinity) -> str | None:
        """The reason why a value makes no difference here; None if it does."""
        if self.problem is not None or affinity == "all":
            return self.problem
        if affinity == "performance-cores":
            return None if self.is_hybrid else "all cores that this process may use are of one kind"
        num_cores = len({cpu.core for cpu in self.cpus})
        shares = num_cores < len(self.cpus)
        return None if shares else "no two CPUs that this process may use share a core"

    @property
    def shape(self) -> str:
        """The number of cores by their CPUs: `8 x 2 + 8 x 1 of efficiency`.

        Without numbers: a scheduler of jobs gives each of them other CPUs, but as many.
        """
        threads = Counter((not cpu.is_performance, cpu.core) for cpu in self.cpus)
        cores = Counter((is_slow, num) for (is_slow, _), num in threads.items())
        return " + ".join(
            f"{num_cores} x {num_threads}{' of efficiency' if is_slow else ''}"
            for (is_slow, num_threads), num_cores in sorted(cores.items())
        )
