"""Matrix products by dtype: the roof of what a device computes.

Shapes: A_NN and B_NN are square. FLOPs of a product: 2 N^3, one multiplication and one addition
for each of N^3 pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from flatout.engine.bench.blocks import Roof, failure_text, unread_row
from flatout.engine.bench.waiting import wait_for
from flatout.engine.model.precision import set_matmul_precision
from flatout.schema.bench import BenchRow, Unit
from flatout.system.clock import elapsed_s

Kind = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "float8", "int8"]
_DTYPES: dict[Kind, torch.dtype] = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
    "fp16": torch.float16, "float8": torch.float8_e4m3fn, "int8": torch.int8,
}  # fmt: skip
# Largest error of a right product, as a share of its largest element. float8's inputs are exact,
# and its product is rounded to bf16.
_TOLERANCES: dict[Kind, float] = {
    "fp64": 1e-10, "fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2, "fp16": 3e-2, "float8": 3e-2,
    "int8": 0.0,
}  # fmt: skip
# Source: CUDA C++ Programming Guide, compute capabilities: TF32 from 8.0, FP8 from 8.9 on.
_LEAST_CAPABILITY: dict[Kind, tuple[int, int]] = {"tf32": (8, 0), "float8": (8, 9)}
_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192, 16384)}
_CLEARLY_SLOWER = 0.8
_NAMES: dict[Kind, str] = {"float8": "float8 (e4m3)"}


class ProductWrong(RuntimeError):
    """A product that is fast and wrong is no roof."""


def product_roof(
    kind: Kind, device: torch.device, call_s: float, sizes: Mapping[str, int]
) -> Roof | BenchRow:
    """The product of one dtype at the size at which it is fastest; a row if it cannot be measured.

    Args:
        call_s: larger sizes are not tried once a call is expected to take longer.
        sizes: those that an earlier process has chosen.
    """
    id, label = f"limits/matmul/{kind}", f"matrix product {_NAMES.get(kind, kind)}"
    unit: Unit = "op/s" if kind == "int8" else "flop/s"
    is_gpu = device.type == "cuda"
    reason = not_here(kind, torch.cuda.get_device_capability(device) if is_gpu else None)
    if reason is not None:
        return unread_row(id, label, unit, reason)
    try:
        size = sizes.get(id) or _fastest_size(kind, device, call_s)
        run = _product(kind, device, size)
    # Not implemented for this dtype, out of memory, no kernel for this GPU: torch's own words.
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return unread_row(id, label, unit, failure_text(error))
    conditions = {"size": str(size)}
    if kind == "float8" and is_gpu:
        conditions["accumulation"] = "fast"
    return Roof(id=id, label=label, unit=unit, run=run, work=2.0 * size**3, conditions=conditions)


def not_here(kind: Kind, capability: tuple[int, int] | None) -> str | None:
    """Why a device does not compute with a dtype; None if it does, or might.

    capability: the GPU's compute capability; None for a CPU.
    """
    if capability is None:
        return "a mode of NVIDIA GPUs" if kind == "tf32" else None
    least = _LEAST_CAPABILITY.get(kind)
    if least is not None and capability < least:
        needed, here = (".".join(map(str, one)) for one in (least, capability))
        return f"needs compute capability {needed}; this GPU has {here}"
    return None


def _fastest_size(kind: Kind, device: torch.device, call_s: float) -> int:
    best_size, best_rate, expected_s = 0, 0.0, 0.0
    for size in _SIZES[device.type]:
        if best_size and expected_s > call_s:
            break
        try:
            run = _product(kind, device, size)
            took_s = _quickest(run)
        except torch.cuda.OutOfMemoryError:
            if not best_size:
                raise
            break
        # The larger one unless it is clearly slower: what disturbs one call must not decide.
        if size**3 / took_s > _CLEARLY_SLOWER * best_rate:
            best_size, best_rate = size, size**3 / took_s
        # Twice the size is eight times the work.
        expected_s = 8 * took_s
    return best_size


def _quickest(run: Callable[[int], None]) -> float:
    times = []
    for _ in range(3):
        began_s = elapsed_s()
        run(1)
        times.append(max(elapsed_s() - began_s, 1e-9))
    return min(times)


def _product(kind: Kind, device: torch.device, size: int) -> Callable[[int], None]:
    """A function that multiplies so many times, checked once against fp64.

    Raises:
        RuntimeError: torch has no such product here; ProductWrong.
    """
    a_NN, b_NN = (_matrix(kind, device, size) for _ in range(2))
    multiply = _multiplication(kind, a_NN, b_NN)

    def run(num: int) -> None:
        with _rounding(kind):
            for _ in range(num):
                multiply()
            wait_for(device)

    with _rounding(kind):
        _check(kind, a_NN, b_NN, multiply())
    return run


@contextlib.contextmanager
def _rounding(kind: Kind) -> Iterator[None]:
    """Rounds fp32 to tf32 within; it holds for the whole process, so not for what follows."""
    if kind != "tf32":
        yield
        return
    set_matmul_precision("tf32")
    try:
        yield
    finally:
        set_matmul_precision("fp32")


def _matrix(kind: Kind, device: torch.device, size: int) -> Tensor:
    # Not zeros: with them a GPU draws less power, and is faster than with a network's numbers.
    if kind == "int8":
        return torch.randint(-64, 64, (size, size), dtype=torch.int8, device=device)
    return torch.randn(size, size, device=device).to(_DTYPES[kind])


def _multiplication(kind: Kind, a_NN: Tensor, b_NN: Tensor) -> Callable[[], Tensor]:
    # 8-bit products want the second matrix by columns; its transpose is as random.
    if kind == "int8":
        return lambda: torch._int_mm(a_NN, b_NN.t())
    if kind == "float8":
        one = torch.ones((), device=a_NN.device)
        is_fast = a_NN.device.type == "cuda"
        return lambda: torch._scaled_mm(
            a_NN, b_NN.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
            use_fast_accum=is_fast,
        )  # fmt: skip
    out_NN = torch.empty_like(a_NN)
    return lambda: torch.mm(a_NN, b_NN, out=out_NN)


def _check(kind: Kind, a_NN: Tensor, b_NN: Tensor, product_NN: Tensor) -> None:
    second_NN = b_NN.t() if kind in ("int8", "float8") else b_NN
    expected_N = a_NN[0].double() @ second_NN.double()
    error = (product_NN[0].double() - expected_N).abs().max().item()
    share = error / max(expected_N.abs().max().item(), 1.0)
    if not share <= _TOLERANCES[kind]:
        raise ProductWrong(f"the product was wrong by {share:.2g} of its largest element")


def kinds() -> tuple[Kind, ...]:
    """All dtypes, the most precise first."""
    return tuple(_DTYPES)
