"""The rows of a workload, from what its processes have replied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec

from flatout.schema.bench import BenchRow, Unit
from flatout.schema.machine import Machine
from flatout.schema.run_protocol import Way, WorkloadMeasured
from flatout.schema.units import bytes_text
from flatout.schema.workloads import MeasuredSize, Workload

# By dtype: of matrix products, in FLOP/s.
ProductLimits = Mapping[str, float]
NO_LIMITS = "no limits of this device are stored: run `flatout bench limits`"
BUSY_LIMITS = "other programs disturbed the stored limits: run `flatout bench limits --again`"


class Series(msgspec.Struct, kw_only=True):
    """Processes that did the same, in time order.

    device: `cpu` or `cuda:N`. changes: recipe fields; None is the plain loop. recipe: as text.
    ladder: of the search that found it; empty if there was none.
    problem: why one of them failed.
    """

    workload: Workload
    size: MeasuredSize
    way: Way
    device: str
    changes: dict[str, Any] | None = None
    recipe: str
    ladder: str = ""
    replies: list[WorkloadMeasured] = []
    problem: str | None = None

    @property
    def prefix(self) -> str:
        """The start of its rows' ids."""
        return f"run/{self.workload.name}/{self.way}/{self.device.partition(':')[0]}"


_QUANTITIES: tuple[tuple[str, str, Unit, bool], ...] = (
    ("step_s", "step", "s", False),
    ("mfu", "MFU", "share", True),
    ("peak_memory", "peak memory", "B", False),
    ("energy", "energy", "J/sample", False),
    ("data_wait_share", "waiting for data", "share", False),
    ("host_share", "host share", "share", False),
    ("time_to_steps", "time to N steps", "s", False),
    ("loss", "loss after these steps", "loss", False),
    ("accuracy", "accuracy after these steps", "share", True),
)


def rows_of(series: Series, limits: ProductLimits | str) -> Iterator[BenchRow]:
    """All rows of a series; those that could not be measured have their reason.

    Args:
        series: of one workload, way and device.
        limits: measured ones of the device, or why there are none.
    """
    conditions = conditions_of(series)
    is_tokens = series.workload.has_tokens
    speed: tuple[str, str, Unit] = (
        ("tokens_per_s", "speed", "tokens/s")
        if is_tokens
        else ("samples_per_s", "speed", "samples/s")
    )
    quantities = ((*speed, True), *_QUANTITIES)
    for name, text, unit, is_higher_better in quantities:
        samples, unread = _samples(name, series, limits)
        more = _more(name, series)
        if not samples and unread is None:
            continue
        yield BenchRow(
            id=f"{series.prefix}/{name}",
            label=f"{series.workload.name}, {_who(series)}: {text}",
            unit=unit,
            samples=tuple(samples),
            is_higher_better=is_higher_better,
            conditions={**conditions, **more},
            unread=unread,
        )


def spill_warnings(rows: Sequence[BenchRow], machine: Machine) -> Iterator[str]:
    """Trainings that took more memory than any GPU here has.

    Windows' driver, under WSL too, then moves a part to the host's memory instead of refusing it,
    and steps become many times slower.
    """
    most = max((gpu.memory_bytes or 0 for gpu in machine.gpus), default=0)
    for row in rows:
        is_gpu = row.conditions.get("device", "").startswith("cuda")
        if not (is_gpu and most and row.samples and row.id.endswith("/peak_memory")):
            continue
        if max(row.samples) > most:
            yield (
                f"{row.label} {bytes_text(max(row.samples))} of {bytes_text(most)}: the driver"
                " moved the rest to the host's memory, which makes steps slow (memory spill)"
            )


def conditions_of(series: Series) -> dict[str, str]:
    """What every row of a series says of it."""
    first = series.replies[0] if series.replies else None
    conditions = {
        "workload": series.workload.name,
        "way": series.way,
        "device": series.device,
        "batch_size": str(series.size.batch_size),
        "size": series.size.text,
    }
    if first is not None:
        conditions |= {
            "dtype": first.dtype, "threads": str(first.num_threads), "data": first.data,
        }  # fmt: skip
    return conditions


def _who(series: Series) -> str:
    return f"{series.way} on {series.device}"


def _more(name: str, series: Series) -> dict[str, str]:
    if name in ("time_to_steps", "loss", "accuracy"):
        return {"steps": str(series.size.num_steps)}
    if name != "step_s" or not series.replies:
        return {}
    first = series.replies[0]
    flops, whole = first.flops_per_step, first.samples_per_step
    mean = fmean(samples for reply in series.replies for samples in reply.mean_samples)
    return {
        "flops_per_step": "unknown" if flops is None else f"{flops * mean / whole:.6g}",
        "parameters": str(first.num_parameters),
        "memory_bytes": str(max(reply.peak_bytes for reply in series.replies)),
        "samples_per_step": f"{mean:.6g}",
        "recipe": series.recipe,
        **({"ladder": series.ladder} if series.ladder else {}),
    }


def _samples(
    name: str, series: Series, limits: ProductLimits | str
) -> tuple[Sequence[float], str | None]:
    """The samples of a quantity; or none, with the reason if there should be some."""
    replies = series.replies
    # The file says how many processes there were: of fewer, intervals would be too narrow.
    if series.problem is not None or not replies:
        return (), series.problem or "not measured"
    first = replies[0]
    steps_s = [step_s for reply in replies for step_s in reply.step_s]
    if name == "step_s":
        return steps_s, None
    if name in ("samples_per_s", "tokens_per_s"):
        per_sample = (first.tokens_per_sample or 1) if name == "tokens_per_s" else 1
        return [rate * per_sample for rate in _rates(replies)], None
    if name == "mfu":
        return _mfu(first, _rates(replies), limits)
    if name == "peak_memory":
        return [float(reply.peak_bytes) for reply in replies], None
    if name == "energy":
        known = [reply.energy_j for reply in replies if reply.energy_j is not None]
        return known, None if known else first.no_energy or "not readable"
    if name == "data_wait_share":
        shares = [reply.data_share for reply in replies]
        return _positive(shares, "no time: the data is there when it is needed")
    if name == "host_share":
        shares = [reply.host_share for reply in replies if reply.host_share is not None]
        return shares, None if shares else first.no_host_share or "not measured"
    if name == "time_to_steps":
        return [reply.time_to_steps_s for reply in replies], None
    if name == "loss":
        return [reply.loss for reply in replies], None
    accuracies = [reply.accuracy for reply in replies if reply.accuracy is not None]
    return _positive(accuracies, "nothing was right") if accuracies else ((), None)


def _rates(replies: Sequence[WorkloadMeasured]) -> list[float]:
    """Samples per second of each block."""
    return [
        samples / step_s
        for reply in replies
        for samples, step_s in zip(reply.mean_samples, reply.step_s, strict=True)
    ]


def _positive(values: Sequence[float], if_zero: str) -> tuple[Sequence[float], str | None]:
    """No ratio can be made of a zero, so a file has none."""
    return (values, None) if values and min(values) > 0 else ((), if_zero)


def _mfu(
    reply: WorkloadMeasured, rates: Sequence[float], limits: ProductLimits | str
) -> tuple[Sequence[float], str | None]:
    """FLOPs of the network over what the device computes at most with this dtype.

    Source: Chowdhery et al. (2022), PaLM, appendix B; but against the measured limit.
    """
    if reply.flops_per_step is None:
        return (), reply.not_counted or "FLOPs not counted"
    if isinstance(limits, str):
        return (), limits
    limit = limits.get(reply.dtype)
    if limit is None:
        return (), f"the stored limits have no matrix product in {reply.dtype}"
    flops_per_sample = reply.flops_per_step / reply.samples_per_step
    return [flops_per_sample * rate / limit for rate in rates], None
