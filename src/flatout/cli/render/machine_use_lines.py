"""What a run's machine did while it trained, in words."""

from __future__ import annotations

from flatout.cli.render import wording
from flatout.schema.machine_use import GpuUse
from flatout.schema.run import Run
from flatout.schema.units import bytes_text, percent_text


def machine_use_lines(run: Run) -> list[tuple[str, str]]:
    """What the machine did during a run: the GPUs that it used, the host, and memory of the run."""
    return [*_load_lines(run), *_memory_lines(run)]


def _memory_lines(run: Run) -> list[tuple[str, str]]:
    """The most memory that a finished run had of its GPU: in tensors, and in torch's allocator."""
    done = run.finished
    if done is None or done.peak_allocated_bytes is None or done.peak_memory_bytes is None:
        return []
    allocated, reserved = bytes_text(done.peak_allocated_bytes), bytes_text(done.peak_memory_bytes)
    return [("GPU memory", f"at most {allocated} allocated, {reserved} reserved by this run")]


def _load_lines(run: Run) -> list[tuple[str, str]]:
    use = run.machine_use
    if use is None:
        return []
    is_on_cpu = run.recipe is not None and run.recipe.device.value == "cpu"
    gpus = () if is_on_cpu else use.gpus
    texts = [_gpu_use_text(gpu) for gpu in gpus if gpu.is_used is not False]
    host = []
    if use.utilization is not None:
        host.append(f"CPUs {percent_text(use.utilization, 0)} busy")
    if use.used_bytes is not None and use.memory_bytes is not None:
        most, whole = bytes_text(use.used_bytes), bytes_text(use.memory_bytes)
        host.append(f"at most {most} of {whole} of memory used")
    texts += [wording.DOT.join(host)] if host else []
    return [("" if number else "load", text) for number, text in enumerate(texts)]


def _gpu_use_text(gpu: GpuUse) -> str:
    parts = [f"GPU {gpu.index}"]
    if gpu.utilization is not None:
        parts[0] += f" {percent_text(gpu.utilization, 0)} busy"
    if gpu.used_bytes is not None:
        whole = f" of {bytes_text(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
        others = f", {bytes_text(gpu.others_bytes)} by other programs" if gpu.others_bytes else ""
        parts.append(f"at most {bytes_text(gpu.used_bytes)}{whole} used{others}")
    if gpu.temperature_c is not None:
        parts.append(f"at most {gpu.temperature_c:.0f} °C")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    if gpu.throttle_reasons:
        parts.append(f"slowed down: {', '.join(gpu.throttle_reasons)}")
    return wording.DOT.join(parts)
