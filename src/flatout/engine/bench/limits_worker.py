"""The process that measures a device: `python -m flatout.engine.bench.limits_worker`."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence

import torch

from flatout.engine.bench.blocks import Roof, measured
from flatout.engine.bench.loader_start import loader_start
from flatout.engine.bench.memory_roofs import copy_roofs, launch_roofs, memory_roofs, pinned_limit
from flatout.engine.bench.products import kinds, product_roof
from flatout.engine.runtime.device import chosen_device, use_device
from flatout.errors import FlatoutError
from flatout.schema.bench import BenchRow
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.limits_protocol import PINNED, Measured, Measuring, Ready, RoofRequest
from flatout.schema.predict_protocol import ProcessFailed, Reply
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

_NUM_LOADER_STARTS = 2


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    try:
        request = stdio.read(RoofRequest)
        stdio.exit_when_closed()
        for reply in replies(request):
            stdio.answers.write(reply)
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = failed(error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


def failed(error: Exception) -> ProcessFailed:
    """An exception as a reply."""
    if isinstance(error, FlatoutError):
        return ProcessFailed(finding=finding_from(error), exit_code=error.exit_code)
    return ProcessFailed(finding=internal_error(error), exit_code=3)


def replies(request: RoofRequest) -> Iterator[Reply]:
    """Measures group by group, so that no more memory is held than one group needs."""
    device = chosen_device(request.device)
    use_device(device)
    yield ready(device)
    yield Measuring(what="matrix products")
    products = [product_roof(kind, device, request.call_s, request.sizes) for kind in kinds()]
    yield from _rows(products, request)
    del products
    _release(device)
    yield Measuring(what="memory")
    yield from _rows(memory_roofs(device), request)
    _release(device)
    yield Measuring(what="copies and launches")
    yield from _rows([*copy_roofs(device), *launch_roofs(device)], request)
    yield Measuring(what="DataLoader start")
    yield Measured(row=loader_start(_NUM_LOADER_STARTS))
    if request.is_last:
        yield Measuring(what=PINNED)
        yield Measured(row=pinned_limit(device))


def ready(device: torch.device) -> Ready:
    """What torch says of itself and the device."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cpu":
        return Ready(
            torch=str(torch.__version__),
            num_threads=torch.get_num_threads(),
            num_gpus=num_gpus,
            instructions=torch.backends.cpu.get_cpu_capability(),
        )
    properties = torch.cuda.get_device_properties(device)
    return Ready(
        torch=str(torch.__version__),
        num_threads=torch.get_num_threads(),
        num_gpus=num_gpus,
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
    )


def _rows(roofs: Sequence[Roof | BenchRow], request: RoofRequest) -> Iterator[Measured]:
    can_run = [roof for roof in roofs if isinstance(roof, Roof)]
    rows = {row.id: row for row in measured(can_run, request.num_blocks, request.block_s)}
    for roof in roofs:
        yield Measured(row=roof if isinstance(roof, BenchRow) else rows[roof.id])


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    end(main())
