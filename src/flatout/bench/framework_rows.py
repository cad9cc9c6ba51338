"""The rows of a way to train: the same quantities for every framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from flatout.bench.framework_programs import ProgramResult
from flatout.schema.bench import BenchRow, Unit
from flatout.schema.experiment_spec import Value
from flatout.schema.framework_protocol import FrameworkData

_QUANTITIES: dict[str, tuple[str, Unit, bool]] = {
    "samples_per_s": ("speed", "samples/s", True),
    "step_s": ("step", "s", False),
    "mfu": ("MFU", "share", True),
    "peak_memory": ("peak memory", "B", False),
    "time_to_steps": ("time to N steps", "s", False),
    "loss": ("loss after these steps", "loss", False),
    "accuracy": ("accuracy after these steps", "share", True),
}


class FrameworkWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A network that all frameworks train.

    num_steps: made before it is scored; also those of `time_to_steps`.
    steps_per_call: where a framework makes several in one compiled call; an epoch of short ones.
    """

    name: str
    experiment: str
    parameters: dict[str, Value]
    size: str
    num_steps: int
    steps_per_call: int = 1


@dataclass
class WaySamples:
    """What the processes of one way have measured, in order. failures: of those that failed."""

    results: list[ProgramResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, result: ProgramResult | str) -> None:
        """Adds what a process gave."""
        if isinstance(result, str):
            self.failures.append(result)
        else:
            self.results.append(result)


class WayRows(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the rows of one way to train.

    limit: of fp32 matrix products in FLOP/s; None if there is none that can be used, with the
    reason in no_limit.
    """

    workload: FrameworkWorkload
    way: str
    device: str
    num_threads: int
    limit: float | None = None
    no_limit: str | None = None

    def row(
        self,
        quantity: str,
        samples: tuple[float, ...] = (),
        conditions: Mapping[str, str] = {},
        unread: str | None = None,
    ) -> BenchRow:
        """A row of this way."""
        text, unit, is_higher_better = _QUANTITIES[quantity]
        kind = self.device.partition(":")[0]
        return BenchRow(
            id=f"frameworks/{self.workload.name}/{self.way}/{kind}/{quantity}",
            label=f"{self.workload.name}, {self.way} on {self.device}: {text}",
            unit=unit,
            samples=samples,
            is_higher_better=is_higher_better,
            conditions={
                "workload": self.workload.name, "way": self.way, "device": self.device,
                "size": self.workload.size, "dtype": "fp32", "threads": str(self.num_threads),
                **conditions,
            },
            unread=unread,
        )  # fmt: skip

    def unread(self, reason: str) -> Iterator[BenchRow]:
        """Its rows if it could not be measured."""
        for quantity in ("samples_per_s", "step_s", "time_to_steps", "loss"):
            yield self.row(quantity, unread=reason)

    def measured(self, data: FrameworkData, samples: WaySamples) -> Iterator[BenchRow]:
        """All quantities; with the reason, if one of its processes has failed.

        Results of some seeds only would be compared with those of others.
        """
        results = samples.results
        if samples.failures or not results:
            reason = samples.failures[0] if samples.failures else "nothing was measured"
            yield from self.unread(reason)
            return
        first = results[0]
        step_s = tuple(value for one in results for value in one.step_s)
        batch = {"batch_size": str(data.batch_size), "data": "MNIST" if data.pixels else "made up"}
        steps = {**batch, "steps": str(self.workload.num_steps)}
        peaks = [float(one.peak_bytes) for one in results if one.peak_bytes]
        flops = data.flops_per_step
        yield self.row("samples_per_s", tuple(data.batch_size / one for one in step_s), batch)
        yield self.row("step_s", step_s, {
            **batch,
            "flops_per_step": "unknown" if flops is None else f"{flops:.6g}",
            "parameters": str(data.num_parameters),
            "memory_bytes": f"{max(peaks):.0f}" if peaks else "unknown",
            "samples_per_step": str(data.batch_size),
            "version": first.version,
            "recipe": first.recipe,
        })  # fmt: skip
        yield self._mfu(flops, step_s, batch)
        unread = None if peaks else "not readable: the framework does not say"
        yield self.row("peak_memory", tuple(peaks), batch, unread)
        yield self.row("time_to_steps", tuple(one.made_s for one in results), steps)
        yield self.row("loss", tuple(one.score.loss for one in results), steps)
        accuracies = tuple(one.score.accuracy for one in results if one.score.accuracy is not None)
        if accuracies:
            yield self.row("accuracy", accuracies, steps)

    def _mfu(
        self, flops: float | None, step_s: tuple[float, ...], batch: Mapping[str, str]
    ) -> BenchRow:
        """FLOPs of the network over what the device computes at most in fp32.

        Source: Chowdhery et al. (2022), PaLM, appendix B; but against the measured limit.
        """
        if flops is None:
            return self.row("mfu", (), batch, "FLOPs not counted")
        if self.limit is None:
            reason = self.no_limit or "the stored limits have no matrix product in fp32"
            return self.row("mfu", (), batch, reason)
        limit = self.limit
        return self.row("mfu", tuple(flops / one / limit for one in step_s), batch)
