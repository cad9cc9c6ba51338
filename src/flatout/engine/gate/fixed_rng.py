"""Random numbers and number formats under which two ways of computing can be compared.

A dropout mask drawn in bf16 is another one than in fp32, even from the same generator: what looks
like an error of the precision would be another mask. Here every draw takes one number from the
CPU's generator, whatever its format and layout, and is made of that number alone, in fp32. So the
draws still repeat when the generator's state is restored, as activation checkpointing does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class FixedRng(TorchDispatchMode):
    """Makes every draw a function of the generator's state, not of number format and layout.

    Args:
        is_expected: draws nothing, and gives each element what is expected of it. So a batch and
            its micro-batches, whose draws could never be the same, can be compared; dropout then
            leaves everything as it is.
    """

    def __init__(self, *, is_expected: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_expected = is_expected

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_draw = torch.Tag.nondeterministic_seeded in func.tags
        if not is_draw or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        key = int(torch.randint(2**62, ()))
        gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(gpus):
            torch.manual_seed(key)
            result = func(*args, **kwargs)
        # Whole numbers are drawn alike in every format; what is not listed stays as it was drawn.
        fill = _FILLS.get(func.overloadpacket)
        if fill is None:
            return result
        source = _expected if self._is_expected else _drawn(key)
        return fill(source, result, args, kwargs)


Source = Callable[[str, Any], Tensor | float]


def _drawn(key: int) -> Source:
    """Numbers of the CPU, contiguous and in fp32, by a key."""
    generator = torch.Generator().manual_seed(key)

    def draw(kind: str, shape: Any) -> Tensor:
        make = torch.randn if kind == "normal" else torch.rand
        return make(shape, generator=generator, dtype=torch.float32)

    return draw


def _expected(kind: str, shape: Any) -> float:
    # Not exactly 0: noise of nothing would take the work out of a model that removes noise.
    return 0.25 if kind == "normal" else 0.5


def _fill_uniform(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    return _filled(result, source("uniform", result.shape))


def _fill_uniform_between(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    low, high = _two(args, kwargs, "from", "to")
    return _filled(result, low + (high - low) * source("uniform", result.shape))


def _fill_normal(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    return _filled(result, source("normal", result.shape))


def _fill_normal_around(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    mean, deviation = _two(args, kwargs, "mean", "std")
    return _filled(result, mean + deviation * source("normal", result.shape))


def _two(args: Any, kwargs: Any, first: str, second: str) -> tuple[float, float]:
    """The two numbers of a distribution, after the tensor that is filled; 0 and 1 if not given."""
    first_value = args[1] if len(args) > 1 else kwargs.get(first, 0.0)
    return first_value, args[2] if len(args) > 2 else kwargs.get(second, 1.0)


def _fill_integers(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    if isinstance(source("uniform", ()), Tensor):
        return result
    ends = [value for value in args[:2] if isinstance(value, int)]
    return result.fill_(sum(ends) // 2)


def _fill_order(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    is_drawn = isinstance(source("uniform", ()), Tensor)
    return result if is_drawn else result.copy_(torch.arange(len(result)))


def _fill_bernoulli(source: Source, result: Tensor, args: Any, kwargs: Any) -> Tensor:
    # In place the filled tensor comes first, and the probability may be left out.
    is_of_itself = len(args) < 2 and "p" not in kwargs and result is not args[0]
    probability = args[0] if is_of_itself else kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    draws = source("uniform", result.shape)
    if isinstance(draws, Tensor):
        if isinstance(probability, Tensor):
            probability = probability.to(draws)
        return _filled(result, draws < probability)
    # In whole numbers, what is likelier.
    is_whole = not result.is_floating_point()
    return _filled(result, probability >= 0.5 if is_whole else probability)


def _fill_dropout(source: Source, result: Any, args: Any, kwargs: Any) -> Any:
    inputs, probability, is_training = args
    if not (is_training or is_training is None) or not 0 < probability < 1:
        return result
    draws = source("uniform", inputs.shape)
    # Kept and scaled, the forward pass fits the backward pass.
    mask = torch.ones_like(inputs, dtype=torch.bool)
    if isinstance(draws, Tensor):
        mask.copy_(draws >= probability)
    return inputs * mask * (1 / (1 - probability)), mask


def _filled(result: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return result.copy_(value)
    return result.fill_(value)


_FILLS: dict[Any, Callable[[Source, Any, Any, Any], Any]] = {
    _aten.rand: _fill_uniform,
    _aten.rand_like: _fill_uniform,
    _aten.uniform_: _fill_uniform_between,
    _aten.randn: _fill_normal,
    _aten.randn_like: _fill_normal,
    _aten.normal_: _fill_normal_around,
    _aten.randint: _fill_integers,
    _aten.randperm: _fill_order,
    _aten.bernoulli: _fill_bernoulli,
    _aten.bernoulli_: _fill_bernoulli,
    _aten.native_dropout: _fill_dropout,
}


class NoFusedDropout(TorchFunctionMode):
    """Attention without dropout: a GPU's attention kernels draw their masks by themselves.

    To draw for them would need another kernel than the one under test.
    """

    _DROPOUT_POSITIONS = {
        functional.scaled_dot_product_attention: 4,
        functional.multi_head_attention_forward: 10,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        position = self._DROPOUT_POSITIONS.get(func)
        if position is not None:
            if len(args) > position:
                args = (*args[:position], 0.0, *args[position + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class Fp64Mode(TorchFunctionMode):
    """Makes code that requests fp32 or less compute in fp64, as the reference must."""

    _CASTS = frozenset((Tensor.float, Tensor.half, Tensor.bfloat16))
    _LOWER = frozenset((torch.float32, torch.float16, torch.bfloat16))

    def __enter__(self) -> Fp64Mode:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._default)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._CASTS:
            return args[0].double()
        args = tuple(self._raised(value) for value in args)
        return func(*args, **{name: self._raised(v) for name, v in (kwargs or {}).items()})

    def _raised(self, value: Any) -> Any:
        is_lower = isinstance(value, torch.dtype) and value in self._LOWER
        return torch.float64 if is_lower else value
