"""A model's plain attributes from before a batch: counters and the like, put back to repeat it.

Most models change none of them. So what was not seen to change is remembered now and then, and only
compared when it would have to be put back, as in `rng_buffer_snapshot.py`. So are long lists.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.model.module_attributes import (
    MISSING,
    can_be_saved,
    plain_attributes,
    version_of,
)
from flatout.engine.tensors.state_tree import compact

# Larger tensors are mostly activations kept for inspection. Copies of them would take memory in
# every step, so whether they were changed is known, but not what they were.
_MOST_TENSOR_BYTES = 2**20

# A list that grows with every batch is not copied for each one any more once it has so many items:
# all copies together would cost the square of the run's length.
_MOST_ITEMS = 1_000

_Place = tuple[nn.Module, str]


class AttributeSnapshot:
    """Plain attributes of all modules as they were before a batch.

    Args:
        model: whose attributes they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # None until the first batch was made: all of them may be what it moves.
        self._moving: set[_Place] | None = None
        self._kept: dict[_Place, _Remembered] = {}
        # Those that moved and were there, but cannot be copied.
        self._unkept: set[_Place] = set()
        self._resting: dict[_Place, _Remembered] = {}

    def keep(self) -> None:
        """A batch begins: what moves is kept as it is now."""
        now: dict[_Place, Any] = {}
        if self._moving is None:
            now = {(module, name): value for module, name, value in plain_attributes(self._model)}
            states = {place: value for place, value in now.items() if can_be_saved(value)}
        else:
            for module, name in self._moving:
                if name in vars(module):
                    now[module, name] = vars(module)[name]
            # In this order: both look at the items.
            long = {
                place: value
                for place, value in now.items()
                if _is_long(value) and can_be_saved(value)
            }
            # Copied once: if they change, that is seen, but not what they were before the batch.
            self._moving -= long.keys()
            self._resting |= _remembered(long)
            now = {place: value for place, value in now.items() if place not in long}
            states = {place: value for place, value in now.items() if can_be_saved(value)}
        self._kept, self._unkept = _remembered(states), now.keys() - states.keys()

    def detect_changes(self) -> None:
        """Finds out what moves; to be called after the first batch, and now and then."""
        now = self._values()
        if self._moving is None:
            self._moving = _moved(self._kept, now, self._kept.keys() | now.keys())
        else:
            self._moving |= self._moved_at_rest(now)
        self._rest(now)

    def settle(self) -> None:
        """Takes what has changed between batches, as by a hook or a validation, as it is now."""
        if self._moving is not None:
            self._rest(self._values())

    def _rest(self, now: dict[_Place, Any]) -> None:
        assert self._moving is not None
        # Many are long since the first batch, and stay as they are.
        self._moving = {place for place in self._moving if not _is_long(now.get(place))}
        resting = {place: value for place, value in now.items() if place not in self._moving}
        self._resting = _remembered(resting)

    def is_known(self) -> bool:
        """Whether nothing has moved that was not kept."""
        now = self._values()
        if self._unkept & now.keys():
            return False
        changed = (self._kept.get(place) for place in self._moved_of_kept(now))
        if any(isinstance(before, _Mark) for before in changed):
            return False
        return self._moving is None or not self._moved_at_rest(now)

    def restore(self) -> None:
        """Puts back what has moved since `keep`; only where it is known."""
        for module, name in self._moved_of_kept(self._values()):
            before = self._kept.get((module, name))
            if before is None:
                vars(module).pop(name, None)
            else:
                assert not isinstance(before, _Mark), "what it was is not known"
                vars(module)[name] = before.as_it_was()

    def _values(self) -> dict[_Place, Any]:
        return {
            (module, name): value
            for module, name, value in plain_attributes(self._model)
            if can_be_saved(value)
        }

    def _moved_of_kept(self, now: dict[_Place, Any]) -> set[_Place]:
        places = self._kept.keys() | now.keys() if self._moving is None else self._moving
        return _moved(self._kept, now, places)

    def _moved_at_rest(self, now: dict[_Place, Any]) -> set[_Place]:
        assert self._moving is not None
        return _moved(self._resting, now, (self._resting.keys() | now.keys()) - self._moving)


@dataclass(frozen=True)
class _Value:
    """A number, a text, or a container of these, with a copy of it.

    contents: of the lists and dicts in it, with these, as others may hold the very same ones, too.
    """

    value: Any
    copy: Any
    contents: list[tuple[Any, Any]]

    def is_same(self, value: Any) -> bool:
        return type(self.copy) is type(value) and bool(self.copy == value)

    def as_it_was(self) -> Any:
        for container, items in self.contents:
            if isinstance(container, dict):
                container.clear()
                container.update(items)
            else:
                container[:] = items
        return self.value


@dataclass(frozen=True)
class _Copied:
    """A small tensor with a copy of it; others may hold this very tensor, too."""

    tensor: Tensor
    copy: Tensor

    def is_same(self, value: Any) -> bool:
        return self.tensor is value and torch.equal(self.copy, compact(value))

    def as_it_was(self) -> Tensor:
        with torch.no_grad():
            compact(self.tensor).copy_(self.copy)
        return self.tensor


@dataclass(frozen=True)
class _Mark:
    """A tensor that is neither copied nor kept in memory: whether it was changed can be seen."""

    tensor: weakref.ref[Tensor]
    version: int

    def is_same(self, value: Any) -> bool:
        # What is gone is None, and so may be the value.
        if not isinstance(value, Tensor) or self.tensor() is not value:
            return False
        return self.version == version_of(value)


@dataclass(frozen=True)
class _Activation:
    """A small tensor of a step: its numbers are needed again, but not its graph."""

    mark: _Mark
    copy: Tensor
    shape: torch.Size

    def is_same(self, value: Any) -> bool:
        return self.mark.is_same(value)

    def as_it_was(self) -> Tensor:
        return self.copy.clone().expand(self.shape)


_Remembered = _Value | _Copied | _Mark | _Activation


def _remembered(values: dict[_Place, Any]) -> dict[_Place, _Remembered]:
    return {place: _one_remembered(value) for place, value in values.items()}


def _one_remembered(value: Any) -> _Remembered:
    if not isinstance(value, Tensor):
        changeable = [one for one in _containers(value) if not isinstance(one, tuple)]
        contents = [(container, copy.copy(container)) for container in changeable]
        return _Value(value, copy.deepcopy(value), contents)
    mark = _Mark(weakref.ref(value), version_of(value))
    if value.nbytes > _MOST_TENSOR_BYTES or value.is_inference():
        return mark
    before = compact(value).detach().clone()
    if value.grad_fn is None:
        return _Copied(value, before)
    return _Activation(mark, before, value.shape)


def _is_long(value: Any) -> bool:
    """Whether lists and dicts have more items than are copied for each batch."""
    num_items = 0
    for container in _containers(value):
        num_items += len(container)
        if num_items > _MOST_ITEMS:
            return True
    return False


def _containers(value: Any) -> Iterator[Any]:
    """The lists, dicts and tuples that it consists of, itself first."""
    unseen = [value]
    while unseen:
        container = unseen.pop()
        if isinstance(container, dict | list | tuple):
            yield container
            unseen += container.values() if isinstance(container, dict) else container


def _moved(
    before: dict[_Place, _Remembered], now: dict[_Place, Any], places: Iterable[_Place]
) -> set[_Place]:
    return {place for place in places if not _is_same(before.get(place), now.get(place, MISSING))}


def _is_same(before: _Remembered | None, value: Any) -> bool:
    if before is None or value is MISSING:
        return before is None and value is MISSING
    return before.is_same(value)
