"""Memory, copies between host and GPU, and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from flatout.engine.bench.blocks import Roof, failure_text, unread_row
from flatout.engine.bench.waiting import wait_for
from flatout.schema.bench import BenchRow
from flatout.system.cpu_topology import last_cache_bytes
from flatout.system.free_memory import free_memory_bytes

# STREAM asks for arrays of four times the last caches together.
# Source: https://www.cs.virginia.edu/stream/ref.html
_NUM_CACHES = 4
# Where the caches are smaller or unknown; no GPU has one of more than 128 MiB.
_ARRAY_BYTES = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}
_MOST_MEMORY = 1 / 8
_COPY_BYTES = 64 * 2**20
_PINNED_STEP_BYTES = 256 * 2**20
_MOST_PINNED_BYTES = 16 * 2**30
_NO_GPU = "no GPU is measured"


def memory_roofs(device: torch.device) -> list[Roof]:
    """Copy and triad as STREAM defines and counts them: bytes read plus bytes written."""
    num = _array_bytes(device) // 4
    a_N, b_N, c_N = (torch.ones(num, device=device) for _ in range(3))
    conditions = {"array_bytes": str(num * 4)}

    def copy() -> None:
        a_N.copy_(b_N)

    def triad() -> None:
        torch.add(b_N, c_N, alpha=3.0, out=a_N)

    return [
        Roof(
            id=f"limits/memory/{name}", label=f"memory, {name}", unit="B/s",
            run=repeated(call, device), work=num_arrays * 4.0 * num, conditions=conditions,
        )
        for name, call, num_arrays in (("copy", copy, 2), ("triad", triad, 3))
    ]  # fmt: skip


def _array_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, most = torch.cuda.mem_get_info(device)[0], _ARRAY_BYTES["cuda"]
    else:
        free = free_memory_bytes()
        most = max(_ARRAY_BYTES["cpu"], _NUM_CACHES * last_cache_bytes())
    return min(most, int(free * _MOST_MEMORY)) // 4 * 4


_COPIES = (
    ("to-device/pageable", "host to device, pageable"),
    ("to-host/pageable", "device to host, pageable"),
    ("to-device/pinned", "host to device, pinned"),
    ("to-host/pinned", "device to host, pinned"),
)


def copy_roofs(device: torch.device) -> list[Roof | BenchRow]:
    """Copies between host and GPU."""
    if device.type == "cpu":
        return [unread_row(f"limits/{id}", label, "B/s", _NO_GPU) for id, label in _COPIES]
    gpu_N = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device)
    roofs: list[Roof | BenchRow] = []
    for id, label in _COPIES:
        try:
            # Under WSL little memory can be pinned.
            host_N = torch.ones(_COPY_BYTES, dtype=torch.uint8, pin_memory="pinned" in id)
        except RuntimeError as error:
            roofs.append(unread_row(f"limits/{id}", label, "B/s", failure_text(error)))
            continue
        target_N, source_N = (gpu_N, host_N) if "to-device" in id else (host_N, gpu_N)
        roofs.append(
            Roof(
                id=f"limits/{id}", label=label, unit="B/s", work=float(_COPY_BYTES),
                run=repeated(_copying(target_N, source_N), device),
                conditions={"bytes": str(_COPY_BYTES)},
            )
        )  # fmt: skip
    return roofs


def _copying(target_N: Tensor, source_N: Tensor) -> Callable[[], None]:
    def copy() -> None:
        target_N.copy_(source_N, non_blocking=True)

    return copy


def launch_roofs(device: torch.device) -> list[Roof | BenchRow]:
    """The time of operators too small to matter: what each costs, whatever it computes."""
    x_1 = torch.ones(1, device=device)

    def add() -> None:
        x_1.add_(1.0)

    operator = Roof(
        id="limits/launch/operator", label="launch, one operator", unit="s",
        run=repeated(add, device),
    )  # fmt: skip
    names = (
        ("limits/launch/round-trip", "launch and wait"),
        ("limits/launch/graph", "launch, CUDA graph"),
    )
    if device.type == "cpu":
        return [operator, *(unread_row(id, label, "s", _NO_GPU) for id, label in names)]

    def add_and_wait(num: int) -> None:
        for _ in range(num):
            x_1.add_(1.0)
            torch.cuda.synchronize(device)

    graph = _captured(add, device)
    runs = (add_and_wait, repeated(graph.replay, device))
    return [
        operator,
        *(
            Roof(id=id, label=label, unit="s", run=run)
            for (id, label), run in zip(names, runs, strict=True)
        ),
    ]


def _captured(call: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def pinned_limit(device: torch.device) -> BenchRow:
    """How much memory can be pinned; a row with the reason if no limit is found.

    What fails may leave an error behind that the next call to CUDA reports: to be measured last.
    """
    id, label = "limits/pinned", "pinned memory, at most"
    if device.type == "cpu":
        return unread_row(id, label, "B", _NO_GPU)
    most = min(_MOST_PINNED_BYTES, free_memory_bytes() // 2)
    return pinned_row(_pinned_blocks(), most)


def pinned_row(blocks: Iterator[Tensor], most_bytes: int) -> BenchRow:
    """The row of a limit.

    Args:
        blocks: pinned memory, of _PINNED_STEP_BYTES each; raises where no more is given.
        most_bytes: no more is pinned.
    """
    id, label = "limits/pinned", "pinned memory, at most"
    held: list[Tensor] = []
    while (len(held) + 1) * _PINNED_STEP_BYTES <= most_bytes:
        try:
            held.append(next(blocks))
        except RuntimeError:
            if not held:
                return unread_row(id, label, "B", "no memory can be pinned")
            limit = float(len(held) * _PINNED_STEP_BYTES)
            return BenchRow(
                id=id, label=label, unit="B", samples=(limit,),
                conditions={"step_bytes": str(_PINNED_STEP_BYTES)},
            )  # fmt: skip
    pinned_gib = len(held) * _PINNED_STEP_BYTES / 2**30
    return unread_row(id, label, "B", f"no limit up to {pinned_gib:g} GiB; not tried beyond")


def _pinned_blocks() -> Iterator[Tensor]:
    while True:
        yield torch.empty(_PINNED_STEP_BYTES, dtype=torch.uint8, pin_memory=True)


def repeated(call: Callable[[], object], device: torch.device) -> Callable[[int], None]:
    """A function that makes so many calls and waits for the device."""

    def run(num: int) -> None:
        for _ in range(num):
            call()
        wait_for(device)

    return run
