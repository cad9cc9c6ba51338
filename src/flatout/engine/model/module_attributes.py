"""Plain attributes of modules: counters, flags, tensors that are not buffers.

They are not in the state_dict, and neither is which weights are frozen. Changes to them during
training are part of its state, so they are in the checkpoint if it can store their type.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.tensors.state_tree import compact

# nn.Module's own: parameters, buffers, hooks, and whether it trains, which every loop sets.
_OF_ALL = frozenset(vars(nn.Module()))
_SIMPLE = (bool, int, float, str, type(None))
_DEPTH = 4

# Total size limit for tensors: larger ones are activations kept for inspection.
_MOST_BYTES = 64 * 2**20

# Remembered of an attribute that was not there, or cannot be compared.
MISSING = object()


class ModuleAttributes:
    """Finds changes in a model's plain attributes since it was built.

    Args:
        model: as it was built, before its first step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = {
            (module, name): remembered(value) for module, name, value in _attributes(model)
        }
        self._is_trained = {n: p.requires_grad for n, p in model.named_parameters()}

    def state(self) -> dict[str, Any]:
        """The changes so far: attributes by module and name, and frozen or unfrozen weights."""
        values: dict[str, dict[str, Any]] = {}
        for module, name, value in self._changed():
            values.setdefault(module, {})[name] = _detached(value)
        lost = self._too_large()
        return {
            "values": {m: value for m, value in values.items() if m not in lost},
            "is_trained": {
                name: parameter.requires_grad
                for name, parameter in self._model.named_parameters()
                if parameter.requires_grad != self._is_trained.get(name)
            },
        }

    def lost(self) -> list[str]:
        """Changed attributes that cannot be stored."""
        names = {
            _joined(module, name)
            for module, name, value in _attributes(self._model)
            if _is_other_container(value) and self._has_changed(module, name, value)
        }
        return sorted(names | {name for module in self._too_large().values() for name in module})

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        modules = dict(self._model.named_modules())
        for module, values in state["values"].items():
            for name, value in values.items():
                setattr(modules[module], name, self._on_device(value))
        weights = dict(self._model.named_parameters())
        for name, is_trained in state["is_trained"].items():
            weights[name].requires_grad_(is_trained)

    def _changed(self) -> Iterator[tuple[str, str, Any]]:
        for module, name, value in _attributes(self._model):
            if can_be_saved(value) and self._has_changed(module, name, value):
                yield module, name, value

    def _has_changed(self, module: str, name: str, value: Any) -> bool:
        return has_changed(self._begun.get((module, name), MISSING), value)

    def _too_large(self) -> dict[str, list[str]]:
        """Names of tensors by module, if all of them are too large together.

        Nothing of these modules is kept: a count that belongs to a tensor is wrong without it.
        """
        tensors = [attribute for attribute in self._changed() if isinstance(attribute[2], Tensor)]
        if sum(value.nbytes for *_, value in tensors) <= _MOST_BYTES:
            return {}
        named: dict[str, list[str]] = {}
        for module, name, _ in tensors:
            named.setdefault(module, []).append(_joined(module, name))
        return named

    def _on_device(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        weight = next(self._model.parameters(), None)
        return value.clone() if weight is None else value.to(weight.device, copy=True)


@contextlib.contextmanager
def restore(model: nn.Module) -> Iterator[None]:
    """Undoes what passes through a model have changed: its buffers, its plain attributes, and which
    weights are frozen.

    What is put into a set or into an object of another class stays.
    """
    modules = dict(model.named_modules())
    buffers = {
        name: {
            own: (buffer, compact(buffer).detach().clone())
            for own, buffer in module._buffers.items()
            if buffer is not None
        }
        for name, module in modules.items()
    }
    slots = {name: dict(module._buffers) for name, module in modules.items()}
    copies = {
        (module, name): value.detach().clone()
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for module, name, value in _attributes(model)
        if can_be_saved(value)
    }
    originals = {(module, name): value for module, name, value in _attributes(model)}
    is_trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, module in modules.items():
                module._buffers.clear()
                module._buffers.update(slots[name])
                for buffer, value in buffers[name].values():
                    compact(buffer).copy_(value)
        _put_attributes_back(modules, originals, copies)
        for parameter, was_trained in is_trained.items():
            parameter.requires_grad_(was_trained)


def _put_attributes_back(
    modules: dict[str, nn.Module],
    originals: dict[tuple[str, str], Any],
    copies: dict[tuple[str, str], Any],
) -> None:
    for module_name, module in modules.items():
        for name in [attribute for attribute in vars(module) if attribute not in _OF_ALL]:
            key = module_name, name
            if key not in originals:
                delattr(module, name)
            elif key not in copies:
                if getattr(module, name) is not originals[key]:
                    setattr(module, name, originals[key])
            elif isinstance(originals[key], Tensor):
                if not originals[key].requires_grad or originals[key].is_leaf:
                    with torch.no_grad():
                        originals[key].copy_(copies[key])
                setattr(module, name, originals[key])
            else:
                setattr(module, name, copies[key])


def plain_attributes(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """The plain attributes of all modules: with their module, by name."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_ALL:
                yield module, name, value


def _attributes(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    names = {module: name for name, module in model.named_modules()}
    for module, name, value in plain_attributes(model):
        yield names[module], name, value


def can_be_saved(value: Any, depth: int = _DEPTH) -> bool:
    """Whether checkpoints can contain the value of an attribute."""
    if type(value) in _SIMPLE:
        return True
    if isinstance(value, Tensor):
        return depth == _DEPTH and value.layout is torch.strided and not value.is_meta
    if depth == 0:
        return False
    if type(value) in (list, tuple):
        return all(can_be_saved(item, depth - 1) for item in value)
    if type(value) is dict:
        pairs = (part for pair in value.items() for part in pair)
        return all(can_be_saved(part, depth - 1) for part in pairs)
    return False


def _is_other_container(value: Any) -> bool:
    """Whether it holds relevant state of a type that a checkpoint cannot store."""
    return isinstance(value, set | deque) or (
        type(value) in (list, dict) and len(value) > 0 and not can_be_saved(value)
    )


def has_changed(begun: Any, value: Any) -> bool:
    """Whether the value of an attribute is another than the one that was remembered."""
    if isinstance(value, Tensor):
        return not _is_same_tensor(begun, value)
    if type(begun) is not type(value):
        return True
    if can_be_saved(value):
        return bool(begun != value)
    return not _has_same_items(begun, value)


def remembered(value: Any) -> Any:
    """What `has_changed` compares a later value with."""
    if isinstance(value, Tensor):
        return value, version_of(value)
    if can_be_saved(value):
        return copy.deepcopy(value)
    # Its items may be anything: later only its length can be compared.
    return copy.copy(value) if _is_other_container(value) else MISSING


def _has_same_items(begun: Any, value: Any) -> bool:
    """Whether it holds the same objects, or equal numbers and texts."""
    first, second = (list(it.items() if isinstance(it, dict) else it) for it in (begun, value))
    if isinstance(value, dict):
        first, second = ([part for pair in pairs for part in pair] for pairs in (first, second))
    return len(first) == len(second) and all(
        a is b or (type(a) in _SIMPLE and type(a) is type(b) and a == b)
        for a, b in zip(first, second, strict=True)
    )


def _is_same_tensor(begun: Any, value: Tensor) -> bool:
    return type(begun) is tuple and begun[0] is value and begun[1] == version_of(value)


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place; always -1 where torch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
