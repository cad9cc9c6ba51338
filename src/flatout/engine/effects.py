"""Whether a setting took effect: seen in a step made under it, never taken for granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout.engine.allocator import is_retaining
from flatout.engine.loader import LoaderFeed
from flatout.engine.session import Session
from flatout.engine.tracing import Trace

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def seen_effect(changes: dict[str, Any], session: Session, trace: Trace) -> str | None:
    """In which way each changed field was seen at work; None if one of them did nothing.

    Args:
        changes: recipe fields with their values.
        session: under that recipe, after an update.
        trace: of that update.
    """
    seen = []
    for name, value in changes.items():
        look = _LOOKS.get(name)
        found = look(value, session, trace) if look is not None else "set"
        if found is None:
            return None
        seen.append(found)
    return ", ".join(seen)


def _precision(value: str, session: Session, trace: Trace) -> str | None:
    dtype = _DTYPES.get(value)
    if dtype is None:
        return f"matmul precision {torch.get_float32_matmul_precision()}"
    count = trace.dtypes[dtype]
    return f"{count} products in {value}" if count else None


def _memory_format(value: str, session: Session, trace: Trace) -> str | None:
    if value == "contiguous":
        return "contiguous"
    count = trace.num_channels_last
    return f"{count} tensors in channels_last" if count else None


def _attention(value: str, session: Session, trace: Trace) -> str | None:
    """Which attention was called: torch's fused ones have names, math is made of products."""
    fused = [name for name in trace.calls if "scaled_dot_product" in name and "math" not in name]
    if value == "math":
        return None if fused else "attention out of products"
    seen = [name for name in fused if value in name]
    return seen[0].removeprefix("aten.") if seen else None


def _optimizer(value: str, session: Session, trace: Trace) -> str | None:
    if value not in ("fused", "foreach"):
        return "as it was built"
    calls = [name for name in trace.calls if f"_{value}_" in name]
    return calls[0].removeprefix("aten.") if calls else None


def _workers(value: int, session: Session, trace: Trace) -> str | None:
    alive = session.feed.num_workers_alive() if isinstance(session.feed, LoaderFeed) else 0
    return f"{alive} workers alive" if alive == value else None


def _threads(value: int, session: Session, trace: Trace) -> str | None:
    plural = "s" if value > 1 else ""
    return f"{value} thread{plural}" if torch.get_num_threads() == value else None


def _allocator(value: str, session: Session, trace: Trace) -> str | None:
    if value == "system":
        return "as the C library does it"
    return f"{trace.num_page_faults:,} page faults in an update" if is_retaining() else None


def _micro_batch(value: int, session: Session, trace: Trace) -> str | None:
    return f"micro-batches of {value}" if value < session.experiment.batch_size else None


_Look = Callable[[Any, Session, Trace], str | None]
_LOOKS: dict[str, _Look] = {
    "precision": _precision,
    "memory_format": _memory_format,
    "attention": _attention,
    "optimizer_implementation": _optimizer,
    "loader_workers": _workers,
    "num_threads": _threads,
    "allocator": _allocator,
    "micro_batch_size": _micro_batch,
}
