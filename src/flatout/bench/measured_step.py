"""The step of a workload, read from a file of `flatout bench run`."""

from __future__ import annotations

import re
from statistics import median

from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_cards import MeasuredStep

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "float8")
# The faster way first; what a person would use on another card, too.
_WAYS = ("flatout", "plain")
_NUMBERED = re.compile(r"cuda:[0-9]{1,3}")
_RATES = ("tokens_per_s", "samples_per_s")


def measured_step(file: BenchFile, workload: str) -> MeasuredStep:
    """The step of a workload: on the GPU if it was measured there, and as flatout trains it.

    Raises:
        UsageError: bench-workload-not-measured, bench-step-without-flops.
    """
    rows = {row.id: row for row in file.rows if row.samples}
    for device in ("cuda", "cpu"):
        for way in _WAYS:
            prefix = f"run/{workload}/{way}/{device}"
            if f"{prefix}/step_s" in rows:
                return _step(file, rows, prefix)
    ids = [id.split("/") for id in rows]
    measured = sorted({parts[1] for parts in ids if parts[0] == "run" and len(parts) > 4})
    raise UsageError(
        "bench-workload-not-measured",
        f"the file has no step time of {workload}.",
        because=f"it has {', '.join(measured) or 'no workload'}",
        fix=f"flatout bench run {workload}",
    )


def _step(file: BenchFile, rows: dict[str, BenchRow], prefix: str) -> MeasuredStep:
    _, workload, way, device = prefix.split("/")
    row = rows[f"{prefix}/step_s"]
    flops = _number(row, "flops_per_step")
    if not flops:
        raise UsageError(
            "bench-step-without-flops",
            f"the file does not say how many FLOPs a step of {workload} takes.",
            because=f"`{row.id}` has no `flops_per_step` in its conditions",
            fix=f"measure again: flatout bench run {workload}",
        )
    step_s = median(row.samples)
    rate = next((rows[f"{prefix}/{one}"] for one in _RATES if f"{prefix}/{one}" in rows), None)
    per_step = _number(row, "samples_per_step") or _number(row, "batch_size")
    if rate is not None:
        per_step = median(rate.samples) * step_s
    host = rows.get(f"{prefix}/host_share")
    name = row.conditions.get("device", "")
    peak = rows.get(f"{prefix}/peak_memory")
    return MeasuredStep(
        workload=workload,
        way=way,
        device=device,
        device_name=name if _NUMBERED.fullmatch(name) else device,
        size=row.conditions.get("size"),
        batch_size=_number(row, "batch_size"),
        dtype=_dtype(row.conditions.get("dtype", "fp32")),
        step_s=step_s,
        flops=flops,
        per_step=per_step or 1.0,
        unit=rate.unit if rate is not None else "samples/s",
        card=_card(file, row) if device == "cuda" else None,
        host_share=min(median(host.samples), 1.0) if host else 0.0,
        peak_bytes=median(peak.samples) if peak else _number(row, "memory_bytes"),
        parameters=_number(row, "parameters"),
    )


def _number(row: BenchRow, name: str) -> float | None:
    """A positive number among the conditions, which may hold any text."""
    try:
        value = float(row.conditions.get(name, "").replace(",", ""))
    except ValueError:
        return None
    return value if 1e-30 < value < 1e30 else None


def _dtype(text: str) -> str:
    return next((one for one in DTYPES if one in text.lower().replace("-", " ").split()), "fp32")


def _card(file: BenchFile, row: BenchRow) -> str | None:
    """What torch has called it; its number counts only the GPUs that CUDA was let see."""
    name = file.settings.get("name")
    if any(gpu.name == name for gpu in file.machine.gpus):
        return name
    number = row.conditions.get("device", "cuda:0").partition(":")[2] or "0"
    gpus = file.machine.gpus
    is_known = number.isascii() and number.isdigit() and len(number) < 4 and int(number) < len(gpus)
    return gpus[int(number)].name if is_known else None
