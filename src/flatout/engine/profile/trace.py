"""The events of torch.profiler as plain data, and the marks that flatout puts between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from flatout.engine.profile.trace_event import BEGIN as BEGIN
from flatout.engine.profile.trace_event import LAYER, MARK, TraceEvent

# A report has no more lines of Python.
MOST_LINES = 40


def new_profiler(*, has_gpu: bool) -> torch.profiler.profile:
    """A profiler that records what a report needs: shapes, memory and FLOPs."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
    return torch.profiler.profile(
        activities=activities, record_shapes=True, profile_memory=True, with_flops=True
    )


def trace_events(profiler: torch.profiler.profile) -> list[TraceEvent]:
    """What a finished profiler has recorded, in the order of their begin."""
    recorded = [event for event in profiler.events() or [] if event.name != "[memory]"]
    # A GPU has a copy of each annotation, which is no kernel.
    annotations = {event.name for event in recorded if event.is_user_annotation}
    recorded = [
        event for event in recorded if not (_is_on_device(event) and event.name in annotations)
    ]
    index = {id(event): number for number, event in enumerate(recorded)}
    by_correlation = {
        event.id: number for number, event in enumerate(recorded) if not _is_on_device(event)
    }
    dtypes = _input_dtypes(profiler, recorded)
    return [
        _trace_event(event, index, by_correlation, _dtype(dtypes.get(number)))
        for number, event in enumerate(recorded)
    ]


def _input_dtypes(profiler: torch.profiler.profile, recorded: list[Any]) -> dict[int, list[str]]:
    """The dtypes of the inputs of each operator, by its number."""
    if all(hasattr(event, "input_dtypes") for event in recorded):
        return {number: event.input_dtypes or [] for number, event in enumerate(recorded)}
    # The events of torch 2.11 lack them; what they are made of has them.
    results = getattr(profiler.profiler, "kineto_results", None)
    known = {
        one.correlation_id(): one.dtypes()
        for one in (results.events() if results is not None else ())
        if str(one.device_type()).endswith(".CPU")
    }
    return {
        number: known[event.id]
        for number, event in enumerate(recorded)
        if event.id in known and not _is_on_device(event)
    }


def _trace_event(
    event: Any, index: dict[int, int], by_correlation: dict[int, int], dtype: str
) -> TraceEvent:
    is_device = _is_on_device(event)
    parent = event.cpu_parent
    linked = getattr(event, "linked_correlation_id", 0) if is_device else 0
    return TraceEvent(
        name=event.name,
        start_s=event.time_range.start / 1e6,
        end_s=event.time_range.end / 1e6,
        thread=event.thread,
        parent=index.get(id(parent)) if parent is not None else None,
        is_device=is_device,
        is_annotation=event.is_user_annotation,
        is_backward=event.scope == 1,
        launched_by=by_correlation.get(linked) if linked else None,
        sequence=event.sequence_nr,
        kernels_s=sum(kernel.duration for kernel in event.kernels) / 1e6,
        shapes=_shapes_text(event.input_shapes),
        dtype=dtype,
        allocated_bytes=_own_bytes(event, is_device),
        flops=float(event.flops or 0),
    )


def _is_on_device(event: Any) -> bool:
    return not str(event.device_type).endswith(".CPU")


def _own_bytes(event: Any, is_device: bool) -> int:
    if is_device or event.is_async:
        return 0
    return int(event.self_cpu_memory_usage + event.self_device_memory_usage)


def _shapes_text(shapes: Any) -> str:
    """`64x784 784x256`: of tensors; numbers and lists of tensors have none."""
    return " ".join("x".join(map(str, shape)) for shape in shapes or () if shape)


def _dtype(dtypes: Any) -> str:
    """Of the first tensor, as torch names it without its prefix; empty if it is not recorded."""
    return next((str(dtype) for dtype in dtypes or () if dtype not in ("", "Scalar")), "")


def mark(part: str) -> None:
    """Notes in a running profile that this part of a step ends here."""
    with torch.profiler.record_function(MARK + part):
        pass


@contextlib.contextmanager
def recorded_layers(model: nn.Module | None = None) -> Iterator[None]:
    """Notes each layer's forward pass, by its path, while the value is open.

    Args:
        model: whose layers; None: those of any module that is called by itself.
    """
    names: dict[int, str] = {}
    if model is not None:
        names = {
            id(module): name or type(module).__name__ for name, module in model.named_modules()
        }
    open_scopes: list[tuple[int, Any]] = []

    def enter(module: nn.Module, inputs: Any) -> None:
        key = id(module)
        if key not in names:
            if model is not None or open_scopes:
                return
            # A root: its layers are known by its name from now on.
            names.update(
                (id(one), f"{type(module).__name__}.{path}" if path else type(module).__name__)
                for path, one in module.named_modules()
            )
        scope = torch.profiler.record_function(LAYER + names[key])
        scope.__enter__()
        open_scopes.append((key, scope))

    def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if all(key != id(module) for key, _ in open_scopes):
            return
        # A layer that has raised has left its scope open.
        while open_scopes:
            key, scope = open_scopes.pop()
            scope.__exit__(None, None, None)
            if key == id(module):
                return

    hooks = nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
