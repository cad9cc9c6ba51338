"""The state that a batch changes besides the weights, from before it: generators and buffers.

A forward pass draws random numbers and moves BatchNorm's averages. Where memory runs out before the
weights were touched, these are put back, and the batch can be repeated as if nothing had been.
Plain attributes are in `attribute_snapshot.py`.

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
from flatout.engine.training.attribute_snapshot import AttributeSnapshot

# A buffer by where its module has it: modules may put another tensor there.
_BufferSlot = tuple[dict[str, Tensor | None], str]


class StepSnapshot:
    """Generators, buffers and plain attributes as they were before a batch.

    settle: takes plain attributes that have changed between batches as they are now.

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
        self._moving_buffers = _by_kind(_buffer_slots(model))
        self._resting_buffers = _Buffers([])
        self._attributes = AttributeSnapshot(model)
        self.settle = self._attributes.settle
        self._has_detected = False

    def keep(self) -> None:
        """A batch begins: what moves is kept as it is now."""
        self._attributes.keep()
        for generator in self._moving.values():
            generator.keep()
        for buffers in self._moving_buffers:
            buffers.keep()

    @torch.no_grad()
    def detect_changes(self) -> None:
        """Finds out what moves; to be called after the first batch, and now and then."""
        self._attributes.detect_changes()
        if not self._has_detected:
            self._has_detected = True
            self._resting = {n: g for n, g in self._moving.items() if not g.has_moved()}
            moved = [slot for group in self._moving_buffers for slot in group.moved_slots()]
        else:
            self._resting = {n: g for n, g in self._resting.items() if not g.has_moved()}
            moved = [slot for group in self._moving_buffers for slot in group.slots]
            moved += self._resting_buffers.moved_slots()
        self._moving = {
            # NumPy's may be there only now.
            name: generator
            for name, generator in _generators(self._device).items()
            if name not in self._resting
        }
        keys = set(map(_key, moved))
        slots = _buffer_slots(self._model)
        self._moving_buffers = _by_kind([slot for slot in slots if _key(slot) in keys])
        self._resting_buffers = _Buffers([p for p in slots if _key(p) not in keys])
        # Read once, and compared on the CPU: the device's memory is for the step.
        self._resting_buffers.keep(torch.device("cpu"))

    @torch.no_grad()
    def restore(self) -> bool:
        """Puts everything back as it was when the batch began; False where that is not known."""
        generators = self._moving | self._resting
        groups = [*self._moving_buffers, self._resting_buffers]
        is_known = (
            all(buffers.has_all() for buffers in groups)
            and _generators(self._device).keys() == generators.keys()
            and len(_buffer_slots(self._model)) == sum(len(buffers.slots) for buffers in groups)
            and not any(generator.has_moved() for generator in self._resting.values())
            and not self._resting_buffers.moved_slots()
            and self._attributes.is_known()
        )
        if is_known:
            self._attributes.restore()
            for generator in self._moving.values():
                generator.restore()
            for buffers in self._moving_buffers:
                buffers.restore()
        return is_known


def _buffer_slots(model: nn.Module) -> list[_BufferSlot]:
    return [
        (module._buffers, name)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _key(slot: _BufferSlot) -> tuple[int, str]:
    return id(slot[0]), slot[1]


def _by_kind(slots: list[_BufferSlot]) -> list[_Buffers]:
    """Groups of tensors that one kernel can copy."""
    groups: defaultdict[Any, list[_BufferSlot]] = defaultdict(list)
    for buffers, name in slots:
        buffer = buffers[name]
        assert buffer is not None
        groups[buffer.dtype, buffer.device].append((buffers, name))
    return [_Buffers(group) for group in groups.values()]


class _Buffers:
    """Buffers with copies of them."""

    def __init__(self, slots: list[_BufferSlot]) -> None:
        self.slots = slots
        self._tensors: list[Tensor] = []
        # Of an expanded one the part that is in memory; each other is itself.
        self._compact: list[Tensor] = []
        self._copies: list[Tensor] = []

    @torch.no_grad()
    def keep(self, device: torch.device | None = None) -> None:
        """Copies them; elsewhere if a device is given."""
        buffers_now = [buffers.get(name) for buffers, name in self.slots]
        tensors = [buffer for buffer in buffers_now if buffer is not None]
        is_same = len(tensors) == len(self._tensors) > 0
        if is_same and all(map(operator.is_, tensors, self._tensors)):
            torch._foreach_copy_(self._copies, self._compact)
            return
        # Memory may be short for them: then nothing is kept, rather than half of it.
        parts = [compact(buffer) for buffer in tensors]
        copies = [buffer.detach().to(device or buffer.device, copy=True) for buffer in parts]
        self._tensors, self._compact, self._copies = tensors, parts, copies

    def has_all(self) -> bool:
        """Whether none was missing when they were copied: a module may take one away."""
        return len(self._tensors) == len(self.slots)

    def moved_slots(self) -> list[_BufferSlot]:
        """The slots whose tensor, or its numbers, changed since the copy."""
        if not self.has_all():
            return self.slots
        copied = zip(self.slots, self._tensors, self._compact, self._copies, strict=True)
        return [
            (buffers, name)
            for (buffers, name), tensor, part, copy in copied
            if buffers.get(name) is not tensor or not _is_same(part, copy)
        ]

    def restore(self) -> None:
        for (buffers, name), tensor, part, copy in zip(
            self.slots, self._tensors, self._compact, self._copies, strict=True
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
    generators = {
        "torch": _Generator(torch.get_rng_state, torch.set_rng_state),
        "python": _Generator(random.getstate, random.setstate),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        generators["numpy"] = _Generator(numpy.random.get_state, numpy.random.set_state)
    if device.type == "cuda":
        generators["cuda"] = _Generator(
            lambda: torch.cuda.get_rng_state(device),
            lambda state: torch.cuda.set_rng_state(state, device),
        )
    return generators


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first.cpu(), second.cpu())
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if hasattr(first, "tolist"):
        # NumPy's, whose `==` gives an array.
        return bool(first.tolist() == second.tolist())
    return bool(first == second)
