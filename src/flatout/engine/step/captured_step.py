"""Whole updates in CUDA graphs: forward, backward, clipping, optimizer, several per launch.

The first updates are made one operation after the other. Then one is recorded, with its inputs,
learning rates and losses in tensors that stay where they are, and from then on updates are laid
aside until there are enough of them for a launch. What does not have the form that was recorded
(the last batch of an epoch) runs eagerly, in order.

Both ways give the same bits: they read the same tensors and draw the same random numbers.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory, one_line
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.user_code import kind_text
from flatout.engine.step.cuda_graphs import Graph, GraphRecorder
from flatout.engine.step.device_lr import DeviceLr
from flatout.engine.step.step import EagerStep, StepParts
from flatout.engine.tensors.nested import tensors_in, with_tensors

# The first makes the optimizer's state, the second prepares its kernel, the third is like all that
# follow: it is looked at for what cannot be recorded.
NUM_WARM_UPS = 3

# Where so many updates had another form than the one that was recorded, and most of all, the graph
# did not pay off.
_JUDGED_UPDATES = 64

Form = tuple[Any, ...]


@dataclass(frozen=True)
class _Slot:
    """The inputs of one update, where a graph reads them."""

    update: list[MicroBatch]
    tensors: list[Tensor]

    @staticmethod
    def like(update: list[MicroBatch]) -> _Slot:
        tensors = [torch.zeros_like(tensor) for tensor in _flat(update)]
        rest = iter(tensors)
        return _Slot([(with_tensors(batch, rest), size) for batch, size in update], tensors)


class _Staged(NamedTuple):
    """An update that is laid aside: its inputs, its rates, and where its loss will be."""

    tensors: list[Tensor]
    rates: tuple[float, ...]
    loss: Tensor


class CapturedStep:
    """Carries out updates, whole ones as graphs.

    problem: why none can be recorded; None as long as nothing speaks against it.
    is_outdated: set where graphs may hold numbers that have changed; they are recorded again.
    num_replayed, num_eager: updates made by graphs, and otherwise since there are graphs.

    Args:
        parts: what an update is made of.
        timer: notified when each part of an update ends that is not made by a graph.
        graphs: records them.
        num_steps: updates per launch.
    """

    # Several ranks do not take it.
    exchange = None

    def __init__(
        self, parts: StepParts, timer: StepTimer, graphs: GraphRecorder, num_steps: int
    ) -> None:
        self.problem: str | None = None
        self.is_outdated = False
        self.num_replayed = self.num_eager = 0
        self._parts = parts
        self._step = EagerStep(replace(parts, to_device=None), timer)
        self._timer = timer
        self._graphs = graphs
        self._num_steps = num_steps
        device = next(parts.model.parameters()).device
        self._rates = DeviceLr(parts.optimizers.only, device, num_steps)
        self._losses = torch.zeros(num_steps, device=device)
        self._form: Form | None = None
        self._prepared: list[MicroBatch] | None = None
        self._next_form: Form | None = None
        self._next_tensors: list[Tensor] = []
        self._is_staging = False
        self._num_warm_ups = 0
        self._slots: list[_Slot] = []
        self._recorded: dict[int, Graph] = {}
        self._frozen: Any = None
        self._staged: list[_Staged] = []
        self._made = self._losses

    @property
    def has_begun(self) -> bool:
        """Whether an update was interrupted after weights may have changed."""
        return self._step.has_begun

    def forget(self) -> None:
        """Discards an interrupted update."""
        self._step.forget()

    def enqueue(self, update: list[MicroBatch]) -> bool:
        """Whether `run` will queue this update for a graph, which is recorded if it is time.

        Raises:
            RuntimeError: there is no memory for the graph; everything is as it was before.
        """
        self._prepared = update
        if self.is_outdated:
            self.flush()
            self._recorded, self.is_outdated = {}, False
        non_tensor_kind = next(
            (kind for batch, _ in update if (kind := _first_non_tensor_kind(batch))), None
        )
        if non_tensor_kind is not None and self.problem is None:
            self.problem = f"its batches contain more than tensors: {non_tensor_kind}"
        self._next_tensors = _flat(update) if non_tensor_kind is None else []
        self._next_form = _form_of(update, self._next_tensors) if non_tensor_kind is None else None
        is_recordable = self.problem is None and self._next_form == self._form is not None
        if is_recordable and self._num_warm_ups == NUM_WARM_UPS and not self._recorded:
            self._record()
        # A schedule may change more than rates; the graph has what was there when it was recorded.
        self._is_staging = (
            is_recordable and bool(self._recorded) and self._frozen == self._rates.frozen()
        )
        return self._is_staging

    def run(self, update: list[MicroBatch]) -> Tensor:
        """Makes one update from the micro-batches of one batch, or lays it aside.

        Returns:
            The batch's mean loss: a scalar on the device, detached. Of an update that is laid
            aside it is there when that was launched.
        """
        if self._prepared is not update:
            self.enqueue(update)
        self._prepared = None
        if self._is_staging and not self._staged:
            self._timer.begin_step()
        to_device, placed = self._parts.to_device, update
        if to_device is not None:
            placed = [(to_device(batch), size) for batch, size in update]
            self._timer.mark("copy")
        if not self._is_staging:
            self.flush()
            return self._eager(placed)
        if not self._staged:
            self._made = torch.empty_like(self._losses)
        loss = self._made[len(self._staged)]
        tensors = self._next_tensors if to_device is None else _flat(placed)
        self._staged.append(_Staged(tensors, self._rates.now(), loss))
        if len(self._staged) == self._num_steps:
            try:
                self._launch(self._staged)
            except BaseException:
                # A repeat repeats only this update; earlier ones are still queued.
                self._staged.pop()
                raise
            self._staged = []
            self._made.copy_(self._losses)
        self._timer.mark("step")
        return loss

    def flush(self) -> None:
        """Launches what is laid aside: after it, weights and losses are those of all updates."""
        while self._staged:
            oldest = self._staged[0]
            self._launch([oldest])
            oldest.loss.copy_(self._losses[0])
            del self._staged[0]

    def _launch(self, staged: list[_Staged]) -> None:
        into: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        out_of: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for slot, update in zip(self._slots, staged, strict=False):
            for static, tensor in zip(slot.tensors, update.tensors, strict=True):
                into[static.dtype].append(static)
                out_of[static.dtype].append(tensor)
        # One kernel for all of a number format.
        for dtype, tensors in into.items():
            torch._foreach_copy_(tensors, out_of[dtype], non_blocking=True)
        self._rates.put([update.rates for update in staged])
        self._recorded[len(staged)].replay()
        self.num_replayed += len(staged)

    def _eager(self, update: list[MicroBatch]) -> Tensor:
        self._rates.put([self._rates.now()])
        form = self._next_form
        is_whole = sum(size for _, size in update) == self._parts.experiment.batch_size
        if self._form is None and form is not None and is_whole:
            self._form = form
            self._slots = [_Slot.like(update) for _ in range(self._num_steps)]
        if form is None:
            return self._at_row(update)
        # Kernels are chosen by addresses, too: a graph's inputs are not slices, so these must not
        # be either.
        slot = self._slots[0] if form == self._form else _Slot.like(update)
        torch._foreach_copy_(slot.tensors, _flat(update))
        if form != self._form or self._num_warm_ups == NUM_WARM_UPS:
            return self._counted(self._at_row(slot.update))
        self._num_warm_ups += 1
        with self._graphs.aside():
            if self._num_warm_ups < NUM_WARM_UPS:
                return self._at_row(slot.update)
            with self._graphs.watched() as reasons:
                loss = self._at_row(slot.update)
        if reasons:
            self.problem = "; ".join(reasons)
            # What was done aside has left memory there that no other stream can use.
            release_memory()
        return loss

    def _counted(self, loss: Tensor) -> Tensor:
        self.num_eager += bool(self._recorded)
        if self._recorded and self.num_eager >= max(_JUDGED_UPDATES, 2 * self.num_replayed):
            self._recorded = {}
            self.problem = (
                f"{self.num_eager} of {self.num_eager + self.num_replayed} batches differ in "
                "shape from the recorded one, or a schedule changes more than the learning rate"
            )
        return loss

    def _at_row(self, update: list[MicroBatch]) -> Tensor:
        with self._rates.at(0):
            return self._step.run(update)

    def _record(self) -> None:
        """Records one update, and as many as a launch has; or finds out that it cannot be.

        Raises:
            RuntimeError: there is no memory for it.
            CaptureBroken: it failed, and the process cannot be used any more.
        """
        self._frozen = self._rates.frozen()
        addresses = _TensorAddresses(self._parts)
        loss = self._parts.loss
        assert loss is not None, "an experiment with its own step is not captured"
        try:
            with loss.settled():
                # The larger graph first: its memory is enough for the other.
                for num in sorted({self._num_steps, 1}, reverse=True):
                    action = functools.partial(self._steps, num)
                    self._recorded[num] = self._graphs.recorded(action)
        except Exception as error:
            self._recorded = {}
            if isinstance(error, CaptureBroken) or is_out_of_memory(error):
                raise
            self.problem = f"recording failed: {one_line(error)}"
        finally:
            # Whatever happened: nothing was done, only written down.
            self._step.forget()
            moved = addresses.restore()
        if moved is not None and self.problem is None:
            self._recorded = {}
            self.problem = f"the step replaces {moved} with another tensor each time"

    def _steps(self, num_steps: int) -> None:
        with self._timer.paused():
            for number in range(num_steps):
                with self._rates.at(number):
                    loss = self._step.run(self._slots[number].update)
                self._losses[number].copy_(loss)


def _form_of(update: list[MicroBatch], tensors: list[Tensor]) -> Form:
    """The properties of an update that a graph requires to be equal."""
    sizes = [size for _, size in update]
    return (sizes, [tensor.shape for tensor in tensors], [tensor.dtype for tensor in tensors])


class _TensorAddresses:
    """Addresses of the tensors that a step changes: weights, buffers, the optimizer's state."""

    def __init__(self, parts: StepParts) -> None:
        holders: list[tuple[str, dict[Any, Any]]] = []
        for module in parts.model.modules():
            holders += [("weight", module._parameters), ("buffer", module._buffers)]
        holders += [("state", state) for state in parts.optimizers.only.state.values()]
        self._entries = [
            (kind, holder, name, tensor, tensor.detach())
            for kind, holder in holders
            for name, tensor in holder.items()
            if isinstance(tensor, Tensor)
        ]

    def restore(self) -> str | None:
        """Puts back tensors that were replaced, or their memory; gives the name of one."""
        moved = None
        for kind, holder, name, tensor, memory in self._entries:
            if holder.get(name) is not tensor or tensor.data_ptr() != memory.data_ptr():
                tensor.data = memory
                holder[name] = tensor
                moved = f"the {kind} `{name}`"
        return moved


def _flat(update: list[MicroBatch]) -> list[Tensor]:
    return [tensor for batch, _ in update for tensor in tensors_in(batch)]


def _first_non_tensor_kind(batch: Any) -> str | None:
    """The kind of the first non-tensor in a batch; None if there are only tensors."""
    if isinstance(batch, Tensor):
        return None
    if not isinstance(batch, list | tuple) and type(batch) is not dict:
        return kind_text(batch)
    items = batch.values() if isinstance(batch, dict) else batch
    return next(
        (kind for item in items if (kind := _first_non_tensor_kind(item)) is not None), None
    )
