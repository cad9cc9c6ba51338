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
    for _, name, tensor in _tensors(model):
        if is_lazy(tensor) or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            return f"`{name}` is of the class {type(tensor).__name__}"
        if (
            tensor.is_meta
            and tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        ):
            return f"`{name}` is a view of another tensor"
    known = {id(tensor) for tensor in before} | {id(tensor) for _, _, tensor in _tensors(model)}
    for tensor in _meta_tensors():
        if id(tensor) not in known:
            shape = tuple(tensor.shape)
            return f"it keeps a tensor of shape {shape} that is neither a parameter nor a buffer"
    return None


def _meta_tensors() -> list[Tensor]:
    """All there are: a model may keep some in lists, in objects of its own, in functions."""
    gc.collect()
    tensors = (candidate for candidate in gc.get_objects() if issubclass(type(candidate), Tensor))
    return [tensor for tensor in tensors if not is_lazy(tensor) and tensor.is_meta]


def has_no_memory(model: nn.Module) -> bool:
    """Whether some of its weights or buffers have no memory yet."""
    return any(tensor.is_meta for _, _, tensor in _tensors(model))


@torch.no_grad()
def give_memory(module: nn.Module) -> None:
    """Gives weights and buffers memory that holds nothing yet; tied ones stay tied."""
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for holder, name, tensor in list(_tensors(module)):
        if not tensor.is_meta:
            continue
        if id(tensor) not in made:
            # The first of the two is kept, so that no other tensor gets its id.
            made[id(tensor)] = tensor, _with_memory(tensor)
        holder[name] = made[id(tensor)][1]


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
            for name, tensor in holder.items():
                if tensor is not None:
                    yield holder, name, tensor  # type: ignore[misc]
