"""A model built without memory for its weights, on ranks to which the first one sends theirs.

The first rank builds the whole model, so what is drawn is what it would be on one rank. The others
build on torch's meta device, where tensors have a shape and no memory. What cannot be built so is
built whole, as on the first rank.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flatout.engine.runtime.error_map import one_line


def without_memory(
    build: Callable[[], nn.Module], use: Callable[[nn.Module], object]
) -> nn.Module | str:
    """A model whose weights and buffers have no memory yet, or why it cannot be built so.

    Args:
        build: builds it.
        use: is called with it, and fails if it needs the values of weights.
    """
    before = _meta_tensors()
    try:
        with torch.device("meta"):
            model = build()
        reason = _why_not(model, before)
        if reason is None:
            use(model)
    except Exception as error:  # noqa: BLE001 - if it is a mistake, building it whole says so
        return f"without memory for its weights, {one_line(error)}"
    return reason or model


def _why_not(model: nn.Module, before: list[Tensor]) -> str | None:
    for _, name, one in _tensors(model):
        if is_lazy(one) or type(one) not in (Tensor, nn.Parameter, nn.Buffer):
            return f"`{name}` is of the class {type(one).__name__}"
        if one.is_meta and one.untyped_storage().nbytes() != one.numel() * one.element_size():
            return f"`{name}` is a view of another tensor"
    known = {id(one) for one in before} | {id(one) for _, _, one in _tensors(model)}
    for one in _meta_tensors():
        if id(one) not in known:
            shape = tuple(one.shape)
            return f"it keeps a tensor of shape {shape} that is neither a parameter nor a buffer"
    return None


def _meta_tensors() -> list[Tensor]:
    """All there are: a model may keep some in lists, in objects of its own, in functions."""
    gc.collect()
    found = (one for one in gc.get_objects() if issubclass(type(one), Tensor))
    return [one for one in found if not is_lazy(one) and one.is_meta]


def has_no_memory(model: nn.Module) -> bool:
    """Whether some of its weights or buffers have no memory yet."""
    return any(one.is_meta for _, _, one in _tensors(model))


@torch.no_grad()
def give_memory(module: nn.Module) -> None:
    """Gives weights and buffers memory that holds nothing yet; tied ones stay tied."""
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for holder, name, one in list(_tensors(module)):
        if not one.is_meta:
            continue
        if id(one) not in made:
            # The first of the two is kept, so that no other tensor gets its id.
            made[id(one)] = one, _with_memory(one)
        holder[name] = made[id(one)][1]


def _with_memory(tensor: Tensor) -> Tensor:
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
    # What an experiment has noted on it, such as that it is not to decay.
    empty.__dict__.update(tensor.__dict__)
    return empty


def _tensors(module: nn.Module) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Weights and buffers with what holds them, and by which name."""
    for part in module.modules():
        for holder in (part._parameters, part._buffers):
            for name, one in holder.items():
                if one is not None:
                    yield holder, name, one  # type: ignore[misc]
