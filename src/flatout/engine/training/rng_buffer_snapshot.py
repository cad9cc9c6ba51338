"""The state that a batch changes besides the weights, from before it: generators and buffers.

A forward pass draws random numbers and moves BatchNorm's averages. Where memory runs out before the
weights were touched, these are put back, and the batch can be repeated as if nothing had been.

Most models move few of them, and reading a generator takes as long as a small layer (LOG.md). So
what was not seen to move is kept once, and only compared when it would have to be put back: if it
has moved all the same, `restore` says so, and the run goes back to its last checkpoint instead.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.tensors.state_tree import compact

# A buffer by where its module has it: modules may put another tensor there.
_Place = tuple[dict[str, Tensor | None], str]


class StepSnapshot:
    """Generators and buffers as they were before a batch.

    Args:
        model: whose buffers they are.
        device: whose generator is drawn from, besides those of the CPU.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        # Until the first batch was made, all of them may be what it moves.
        self._moving = _generators(device)
        self._resting: dict[str, _Generator] = {}
        self._moving_buffers = _by_kind(_places(model))
        self._resting_buffers = _Buffers([])
        self._has_looked = False

    def keep(self) -> None:
        """A batch begins: what moves is kept as it is now."""
        for generator in self._moving.values():
            generator.keep()
        for buffers in self._moving_buffers:
            buffers.keep()

    @torch.no_grad()
    def look(self) -> None:
        """Finds out what moves; to be called after the first batch, and now and then."""
        if not self._has_looked:
            self._has_looked = True
            self._resting = {n: one for n, one in self._moving.items() if not one.has_moved()}
            moved = [place for one in self._moving_buffers for place in one.moved_places()]
        else:
            self._resting = {n: one for n, one in self._resting.items() if not one.has_moved()}
            moved = [place for one in self._moving_buffers for place in one.places]
            moved += self._resting_buffers.moved_places()
        self._moving = {
            # NumPy's may be there only now.
            name: generator
            for name, generator in _generators(self._device).items()
            if name not in self._resting
        }
        keys = set(map(_key, moved))
        places = _places(self._model)
        self._moving_buffers = _by_kind([place for place in places if _key(place) in keys])
        self._resting_buffers = _Buffers([p for p in places if _key(p) not in keys])
        # Read once, and compared on the CPU: the device's memory is for the step.
        self._resting_buffers.keep(torch.device("cpu"))

    @torch.no_grad()
    def restore(self) -> bool:
        """Puts everything back as it was when the batch began; False where that is not known."""
        generators = self._moving | self._resting
        kept = [*self._moving_buffers, self._resting_buffers]
        is_known = (
            all(buffers.has_all() for buffers in kept)
            and _generators(self._device).keys() == generators.keys()
            and len(_places(self._model)) == sum(len(buffers.places) for buffers in kept)
            and not any(generator.has_moved() for generator in self._resting.values())
            and not self._resting_buffers.moved_places()
        )
        if is_known:
            for generator in self._moving.values():
                generator.restore()
            for buffers in self._moving_buffers:
                buffers.restore()
        return is_known


def _places(model: nn.Module) -> list[_Place]:
    return [
        (module._buffers, name)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _key(place: _Place) -> tuple[int, str]:
    return id(place[0]), place[1]


def _by_kind(places: list[_Place]) -> list[_Buffers]:
    """Groups of tensors that one kernel can copy."""
    groups: defaultdict[Any, list[_Place]] = defaultdict(list)
    for buffers, name in places:
        buffer = buffers[name]
        assert buffer is not None
        groups[buffer.dtype, buffer.device].append((buffers, name))
    return [_Buffers(group) for group in groups.values()]


class _Buffers:
    """Buffers with copies of them."""

    def __init__(self, places: list[_Place]) -> None:
        self.places = places
        self._tensors: list[Tensor] = []
        # Of an expanded one the part that is in memory; each other is itself.
        self._compact: list[Tensor] = []
        self._copies: list[Tensor] = []

    @torch.no_grad()
    def keep(self, device: torch.device | None = None) -> None:
        """Copies them; elsewhere if a device is given."""
        found = [buffers.get(name) for buffers, name in self.places]
        tensors = [one for one in found if one is not None]
        is_same = len(tensors) == len(self._tensors) > 0
        if is_same and all(map(operator.is_, tensors, self._tensors)):
            torch._foreach_copy_(self._copies, self._compact)
            return
        # Memory may be short for them: then nothing is kept, rather than half of it.
        parts = [compact(one) for one in tensors]
        copies = [one.detach().to(device or one.device, copy=True) for one in parts]
        self._tensors, self._compact, self._copies = tensors, parts, copies

    def has_all(self) -> bool:
        """Whether none was missing when they were copied: a module may take one away."""
        return len(self._tensors) == len(self.places)

    def moved_places(self) -> list[_Place]:
        """The places whose tensor, or its numbers, changed since the copy."""
        if not self.has_all():
            return self.places
        kept = zip(self.places, self._tensors, self._compact, self._copies, strict=True)
        return [
            (buffers, name)
            for (buffers, name), tensor, part, copy in kept
            if buffers.get(name) is not tensor or not _is_same(part, copy)
        ]

    def restore(self) -> None:
        for (buffers, name), tensor, part, copy in zip(
            self.places, self._tensors, self._compact, self._copies, strict=True
        ):
            part.data.copy_(copy)
            buffers[name] = tensor


class _Generator:
    """A generator with a state of it."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read = read
        self._write = write
        self._state: Any = None

    def keep(self) -> None:
        self._state = self._read()

    def has_moved(self) -> bool:
        return not _is_same(self._state, self._read())

    def restore(self) -> None:
        self._write(self._state)


def _generators(device: torch.device) -> dict[str, _Generator]:
    """The generators that a step may draw from, by their library."""
    found = {
        "torch": _Generator(torch.get_rng_state, torch.set_rng_state),
        "python": _Generator(random.getstate, random.setstate),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = _Generator(numpy.random.get_state, numpy.random.set_state)
    if device.type == "cuda":
        found["cuda"] = _Generator(
            lambda: torch.cuda.get_rng_state(device),
            lambda state: torch.cuda.set_rng_state(state, device),
        )
    return found


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if hasattr(one, "tolist"):
        # NumPy's, whose `==` gives an array.
        return bool(one.tolist() == other.tolist())
    return bool(one == other)
