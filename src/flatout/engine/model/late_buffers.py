"""Buffers that a model creates or resizes in its forward pass.

A resume rebuilds the model, so they do not exist yet or have another size. The forms at build time
are in the checkpoint too, to recognize a model that is built differently now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from flatout.engine.tensors.state_tree import compact
from flatout.errors import UsageError

# Shape, dtype, and whether it is in the state_dict; None for a buffer that does not exist.
Form = list[Any] | None


@dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """The structure of a model: forms of weights and buffers, and classes of modules, by name."""

    weights: dict[str, tuple[int, ...] | None]
    buffers: dict[str, Form]
    modules: dict[str, type[nn.Module]]


def structure_of(model: nn.Module) -> ModelStructure:
    """The forms of a model as it is now; None for a weight whose size is not known yet."""
    return ModelStructure(
        weights={
            name: None if is_lazy(weight) else tuple(weight.shape)
            for name, weight in model.named_parameters(remove_duplicate=False)
        },
        buffers=buffer_forms(model),
        modules={
            name: type(module) for name, module in model.named_modules(remove_duplicate=False)
        },
    )


def buffer_forms(model: nn.Module) -> dict[str, Form]:
    """The form of every buffer by name, including registered buffers that are None."""
    return {
        f"{path}.{name}" if path else name: _form(module, name)
        for path, module in model.named_modules(remove_duplicate=False)
        for name in module._buffers
    }


def _form(module: nn.Module, name: str) -> Form:
    buffer = module._buffers.get(name)
    if buffer is None:
        return None
    is_stored = name not in module._non_persistent_buffers_set
    if is_lazy(buffer):
        return [None, "", is_stored]
    return [list(buffer.shape), str(buffer.dtype).removeprefix("torch."), is_stored]


def check_is_taken_back(model: nn.Module, built: ModelStructure) -> None:
    """Refuses a model whose structure has changed since it was built: it could not be resumed.

    Raises:
        UsageError: state-cannot-be-taken-back.
    """
    now = structure_of(model)
    problem = next(
        (
            f"`{name}` was {'missing' if form is None else f'of shape {form}'}"
            for name in [*now.weights, *built.weights]
            if now.weights.get(name) != (form := built.weights.get(name))
            and not (name in built.weights and form is None)
        ),
        None,
    )
    problem = problem or _other_module(now.modules, built.modules)
    if problem is not None:
        raise UsageError(
            "state-cannot-be-taken-back",
            "the model has changed since it was built, so a resume could not continue with it.",
            because=f"{problem} when `model` returned it; a resume builds the model again, and the "
            "optimizer does not train parameters that are added later",
            fix="create all modules and parameters in __init__",
        )


def _other_module(now: dict[str, type[nn.Module]], built: dict[str, type[nn.Module]]) -> str | None:
    """What a module was that is there no more, or another one; None if all are as they were."""
    for name in sorted(now.keys() | built.keys()):
        before = built.get(name)
        if before is None:
            return f"`{name}` was missing"
        # A lazy one becomes what it is made for.
        is_lazy_one = name in now and issubclass(before, LazyModuleMixin)
        if now.get(name) is not before and not is_lazy_one:
            return f"`{name}` was of class {before.__name__}"
    return None


@torch.no_grad()
def make_room(model: nn.Module, built: dict[str, Form], stored: dict[str, Form]) -> None:
    """Gives a new model buffers of the forms that a stored state has, to be filled from it.

    Args:
        model: as it was built now.
        built: the forms that the model of that state had when it was built.
        stored: those that it had in the end.
    """
    if buffer_forms(model) != built:
        # A different model: loading the state will report what does not fit.
        return
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, form in stored.items():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        if (
            module is not None
            and _form(module, last) != form
            and (form is None or form[0] is not None)
        ):
            _put(model, module, last, form)
    for name in built.keys() - stored.keys():
        path, _, last = name.rpartition(".")
        if last in modules[path]._buffers:
            delattr(modules[path], last)


def take_forms(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Gives a model's buffers the forms of all tensors of a state_dict, to be filled from them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            if (f"{path}.{name}" if path else name) not in tensors:
                module._buffers[name] = None
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        if module is None or last not in module._buffers:
            continue
        before = module._buffers[last]
        if before is None or (before.shape != tensor.shape and not is_lazy(before)):
            dtype = str(tensor.dtype).removeprefix("torch.")
            _put(model, module, last, [list(tensor.shape), dtype, True])


def _put(model: nn.Module, module: nn.Module, name: str, form: Form) -> None:
    """Puts an empty buffer of a form in its place, and in all that share the one that was there."""
    before = module._buffers.get(name)
    buffer = None
    if form is not None:
        shape, dtype, _ = form
        first = before if before is not None else next(model.parameters(), None)
        device = first.device if first is not None else "cpu"
        buffer = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
    if name not in module._buffers:
        module.register_buffer(name, buffer, persistent=form is None or form[2])
    module._buffers[name] = buffer
    if before is None:
        return
    for other in model.modules():
        for key, shared in other._buffers.items():
            if shared is before:
                other._buffers[key] = buffer


class BufferSnapshot:
    """A model's buffers after its last good update, because a bad forward pass changes them too.

    Args:
        model: whose buffers they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._holders = [module._buffers for module in model.modules()]
        self._saved: list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]] = []

    def keep(self) -> None:
        """Copies them as they are now."""
        self._saved = [
            (holder, name, buffer, compact(buffer).clone())
            for holder in self._holders
            for name, buffer in holder.items()
            if buffer is not None
        ]

    def restore(self) -> None:
        """Restores them, including those replaced by another tensor."""
        for holder, name, buffer, saved in self._saved:
            holder[name] = buffer
            # Another update may still go back through this forward pass: autograd refuses what was
            # changed in place, but backward of a BatchNorm that trains does not read its averages.
            compact(buffer).data.copy_(saved)
