"""One rank of an all-reduce: `python -m flatout.engine.bench.all_reduce`."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from flatout.engine.bench.blocks import Roof
from flatout.engine.bench.limits_worker import failed
from flatout.engine.bench.waiting import wait_for
from flatout.engine.runtime.device import use_device
from flatout.schema.bench import BenchRow, Unit
from flatout.schema.limits_protocol import AllReduceRequest, Measured
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

_LARGE_BYTES, _SMALL_BYTES = 32 * 2**20, 4
_TIMEOUT = timedelta(seconds=60)


def main() -> int:
    """Handles one request; gives the exit code. Only rank 0 replies."""
    stdio = JsonStdio()
    try:
        request = stdio.read(AllReduceRequest)
        stdio.exit_when_closed()
        for row in rows(request):
            if request.rank == 0:
                stdio.answers.write(Measured(row=row))
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = failed(error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


def rows(request: AllReduceRequest) -> Iterator[BenchRow]:
    """Bus bandwidth of a large all-reduce, and the latency of a small one.

    Source for bus bandwidth: 2 (n - 1) / n times the size over the time,
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
    """
    device = torch.device("cpu" if request.backend == "gloo" else f"cuda:{request.rank}")
    use_device(device)
    store = FileStore(request.path, request.world_size)
    dist.init_process_group(
        request.backend, store=store, rank=request.rank, world_size=request.world_size,
        timeout=_TIMEOUT,
    )  # fmt: skip
    try:
        for roof in _roofs(request, device):
            yield roof.row(_samples(roof, request, device))
    finally:
        dist.destroy_process_group()


def _roofs(request: AllReduceRequest, device: torch.device) -> list[Roof]:
    def reducing(num_bytes: int) -> Roof:
        x_N = torch.zeros(num_bytes // 4, device=device)

        def run(num: int) -> None:
            for _ in range(num):
                dist.all_reduce(x_N)
            wait_for(device)

        is_large = num_bytes == _LARGE_BYTES
        unit: Unit = "s"
        if is_large:
            unit = "B/s"
        bus = 2 * (request.world_size - 1) / request.world_size * num_bytes
        name = "bandwidth" if is_large else "latency"
        return Roof(
            id=f"limits/all-reduce/{request.backend}/{name}",
            label=f"all-reduce {request.backend}, {name}",
            unit=unit,
            run=run,
            work=bus if is_large else None,
            conditions={"processes": str(request.world_size), "bytes": str(num_bytes)},
        )

    return [reducing(_LARGE_BYTES), reducing(_SMALL_BYTES)]


def _samples(roof: Roof, request: AllReduceRequest, device: torch.device) -> list[float]:
    """All ranks make the same number of calls: rank 0 decides."""
    roof.run(2)
    began_s = elapsed_s()
    roof.run(3)
    call_s = max((elapsed_s() - began_s) / 3, 1e-7)
    num_1 = torch.tensor([max(1, round(request.block_s / call_s))], device=device)
    dist.broadcast(num_1, 0)
    num = int(num_1.item())
    samples = []
    for _ in range(request.num_blocks):
        began_s = elapsed_s()
        roof.run(num)
        took_s = max(elapsed_s() - began_s, 1e-9) / num
        samples.append(roof.work / took_s if roof.work else took_s)
    return samples


if __name__ == "__main__":
    end(main())
