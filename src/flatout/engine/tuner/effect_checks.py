"""Whether a setting took effect: seen in a step made under it, never taken for granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flatout.engine.feed.cached_feed import CachedFeed
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.feed.loader_feed import LoaderFeed
from flatout.engine.model.precision import matmul_precision
from flatout.engine.runtime.allocator import is_retaining
from flatout.engine.runtime.cpu_affinity import cpus_by_thread
from flatout.engine.session.compiled import compilers
from flatout.engine.session.session import Session
from flatout.engine.step.captured_step import CapturedStep
from flatout.engine.step.step import EagerStep
from flatout.engine.tensors.nested import tensors_in
from flatout.engine.tuner.op_trace import Trace
from flatout.schema.recipe import CpuAffinity
from flatout.schema.units import counted_text

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float8": torch.bfloat16}
_TORCH_PREFETCH = 2
_ONLY_FILLING = "active until the cache is full"


@dataclass(frozen=True, kw_only=True)
class UpdateEvidence:
    """Evidence of a setting's effect after an update.

    session: under a recipe. trace: of the update. update: its micro-batches, as they were read.
    step: made it, and some more where updates are made in graphs.
    """

    session: Session
    trace: Trace
    update: list[MicroBatch]
    step: EagerStep | CapturedStep | None = None


def observed_effect(changes: dict[str, Any], evidence: UpdateEvidence) -> str | None:
    """The visible effect of each changed field; None if one of them did nothing.

    Args:
        changes: recipe fields with their values.
        evidence: after an update under them.
    """
    effects = []
    for name, value in changes.items():
        find_effect = _EFFECT_CHECKS.get(name)
        effect = find_effect(value, evidence) if find_effect is not None else "set"
        if effect is None:
            return None
        effects.append(effect)
    return ", ".join(effects)


def _precision(value: str, evidence: UpdateEvidence) -> str | None:
    dtype = _DTYPES.get(value)
    if dtype is None:
        return f"matmul precision {matmul_precision()}"
    count = evidence.trace.dtypes[dtype]
    if value == "float8":
        count = sum(n for name, n in evidence.trace.calls.items() if "_scaled_mm" in name)
    return f"{count} products in {value}" if count else None


def _memory_format(value: str, evidence: UpdateEvidence) -> str | None:
    if value == "contiguous":
        return "contiguous"
    count = evidence.trace.num_channels_last
    return f"{count} tensors in channels_last" if count else None


def _attention(value: str, evidence: UpdateEvidence) -> str | None:
    """The attention that was called: torch's fused kernels have names, math is made of products."""
    names = [name for name in evidence.trace.calls if "scaled_dot_product" in name]
    fused = [name for name in names if "math" not in name]
    if value == "math":
        return None if fused else "attention as matrix products"
    matching = [name for name in fused if value in name]
    return matching[0].removeprefix("aten.") if matching else None


def _optimizer(value: str, evidence: UpdateEvidence) -> str | None:
    if value not in ("fused", "foreach"):
        return "as it was built"
    calls = [name for name in evidence.trace.calls if f"_{value}_" in name]
    return calls[0].removeprefix("aten.") if calls else None


def _data_path(value: str, evidence: UpdateEvidence) -> str | None:
    if value != "cached":
        return value
    feed = evidence.session.feed
    has_effect = isinstance(feed, CachedFeed) and feed.num_read == 0
    return "no sample was read; all came from the cache" if has_effect else None


def _workers(value: int, evidence: UpdateEvidence) -> str | None:
    feed = evidence.session.feed
    if isinstance(feed, CachedFeed):
        return _ONLY_FILLING
    alive = feed.num_workers_alive() if isinstance(feed, LoaderFeed) else 0
    return f"{counted_text(alive, 'worker')} alive" if alive == value else None


def _prefetch(value: int, evidence: UpdateEvidence) -> str | None:
    feed, workers = evidence.session.feed, evidence.session.recipe.loader_workers.value
    if isinstance(feed, CachedFeed):
        return _ONLY_FILLING
    if not isinstance(feed, LoaderFeed) or workers == 0:
        return None
    ahead = feed.num_batches_ahead()
    # In an epoch of few batches there may not be as many, but more than torch would fetch.
    has_effect = ahead > min(value - 1, _TORCH_PREFETCH) * workers
    return f"{counted_text(ahead, 'batch', 'batches')} ahead" if has_effect else None


def _pinned(value: bool, evidence: UpdateEvidence) -> str | None:
    is_read = isinstance(evidence.session.feed, LoaderFeed | CachedFeed)
    if not (value and is_read and evidence.session.device.type == "cuda"):
        return "set"
    tensors = list(tensors_in([batch for batch, _ in evidence.update]))
    has_effect = bool(tensors) and all(tensor.is_pinned() for tensor in tensors)
    return "batches are in pinned memory" if has_effect else None


def _threads(value: int, evidence: UpdateEvidence) -> str | None:
    return counted_text(value, "thread") if torch.get_num_threads() == value else None


def _affinity(value: CpuAffinity, evidence: UpdateEvidence) -> str | None:
    topology, threads = evidence.session.facts.topology, cpus_by_thread().values()
    if value == "all":
        return "threads scheduled by the system"
    chosen = set(topology.chosen(value))
    if not all(cpus <= chosen for cpus in threads):
        return None
    total = counted_text(len(topology.cpus), "CPU")
    return f"{counted_text(len(threads), 'thread')} pinned to {len(chosen)} of {total}"


def _allocator(value: str, evidence: UpdateEvidence) -> str | None:
    if value == "system":
        return "default of the C library"
    return (
        f"{evidence.trace.num_page_faults:,} page faults in an update" if is_retaining() else None
    )


def _micro_batch(value: int, evidence: UpdateEvidence) -> str | None:
    num = len(evidence.update)
    return f"{num} micro-batches of {value}" if num > 1 else None


def _recomputed(value: bool | float, evidence: UpdateEvidence) -> str | None:
    if not value:
        return "all activations kept"
    activations = evidence.session.activations
    count = activations.num_blocks if activations is not None else 0
    has_effect = activations is not None and not activations.is_without_effect()
    return f"{counted_text(count, 'block')} recomputed" if has_effect else None


def _capture(value: str, evidence: UpdateEvidence) -> str | None:
    if value == "off":
        return "operations launched one by one"
    count = evidence.step.num_replayed if isinstance(evidence.step, CapturedStep) else 0
    return f"{counted_text(count, 'update')} replayed" if count else None


def _compiled(value: str, evidence: UpdateEvidence) -> str | None:
    used_compilers = compilers(evidence.session)
    if not used_compilers or any(compiler.num_calls == 0 for compiler in used_compilers):
        return None
    num_graphs = sum(compiler.num_graphs for compiler in used_compilers)
    return f"{counted_text(num_graphs, 'graph')} compiled and run"


_EffectCheck = Callable[[Any, UpdateEvidence], str | None]
_EFFECT_CHECKS: dict[str, _EffectCheck] = {
    "precision": _precision,
    "memory_format": _memory_format,
    "attention": _attention,
    "optimizer_implementation": _optimizer,
    "data_path": _data_path,
    "loader_workers": _workers,
    "loader_prefetch": _prefetch,
    "loader_pin_memory": _pinned,
    "num_threads": _threads,
    "cpu_affinity": _affinity,
    "allocator": _allocator,
    "micro_batch_size": _micro_batch,
    "capture": _capture,
    "activation_checkpointing": _recomputed,
    "compiled": _compiled,
}
