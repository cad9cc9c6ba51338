"""Graphs on a CPU: operations are recorded and replayed, as in a CUDA graph.

They have the properties of CUDA graphs: recording computes nothing; a replay reads and writes the
recorded tensors; Python numbers are those of the recording; reading a number on the host is an
error; only random numbers are redrawn. A call of compiled code is one operation, as far as torch
shows it: see `code_is_seen`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.engine.runtime import rng
from flatout.engine.step.cuda_graphs import drawn_on_host

# It gives more where gradients are wanted, which a replay cannot know.
_NOT_REPEATED = ("mkldnn.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer")
SAID = "CUDA error: operation not permitted when stream is capturing"
_READS = (
    "aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten.nonzero",
    "aten._pack_padded_sequence", "aten._coalesce", "aten._nnz",
)  # fmt: skip


@contextlib.contextmanager
def code_is_seen() -> Iterator[None]:
    """Records a call of compiled code as one operation.

    Under any other mode torch would run the original code.
    """
    from torch._higher_order_ops.utils import redirect_to_mode
    from torch._higher_order_ops.wrap import inductor_compiled_code

    for mode in (_Reads, _Recorder):
        if mode not in inductor_compiled_code.python_key_table:
            redirect_to_mode(inductor_compiled_code, mode)
    with torch._inductor.config.patch(wrap_inductor_compiled_regions=True):
        yield


class RecordedGraphs:
    """See flatout.engine.step.cuda_graphs.GraphRecorder.

    num_recorded: graphs so far.

    Args:
        draws_anew: redraw random numbers, like a graph whose generators are registered; else each
            replay uses the recorded ones.
        is_short: the last allocation of a graph fails.
    """

    def __init__(self, *, draws_anew: bool = True, is_short: bool = False) -> None:
        self.num_recorded = 0
        self.is_short = is_short
        self._draws_anew = draws_anew

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """There is only one stream."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Counts numbers that are read, and draws of Python and NumPy."""
        reasons: list[str] = []
        before = rng.host_generator_states()
        with _Reads() as reads:
            yield reasons
        if reads.num:
            reasons.append("the step waits for the GPU, as `.item()` and printing a tensor do")
        moved = rng.moved_generators(before, rng.host_generator_states())
        reasons += [drawn_on_host(name) for name in moved if name != "torch"]

    def recorded(self, action: Callable[[], object]) -> RecordedGraph:
        """Records an action, and undoes its effects."""
        state = torch.get_rng_state()
        recorder = _Recorder()
        try:
            with recorder:
                action()
            if self.is_short:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        finally:
            recorder.undo()
            torch.set_rng_state(state)
        self.num_recorded += 1
        return RecordedGraph(recorder.calls, None if self._draws_anew else state)


class RecordedGraph:
    """Operations with their recorded tensors and numbers."""

    def __init__(self, calls: list[tuple[Any, Any, Any, Any]], state: Tensor | None) -> None:
        self._calls = calls
        self._state = state

    @torch.no_grad()
    def replay(self) -> None:
        """Runs them again."""
        if self._state is not None:
            torch.set_rng_state(self._state)
        for operation, args, kwargs, out in self._calls:
            again = operation(*args, **kwargs)
            for old, new in zip(_tensors(out), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Reads(TorchDispatchMode):
    """Counts numbers that are read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is run under it, not what it was compiled from."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, HigherOrderOperator):
            self.num += str(func.overloadpacket) in _READS
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Records operations, and keeps what they overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self._made: set[int] = set()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is run under it, not what it was compiled from."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            return self._code(*args)
        if str(func.overloadpacket) in (*_READS, *_NOT_REPEATED):
            raise RuntimeError(SAID)
        kwargs = kwargs or {}
        if any(one.is_sparse for one in _tensors([*args, *kwargs.values()])):
            # How many elements there are is read on the host.
            raise RuntimeError(SAID)
        for tensor in _written(func, args, kwargs):
            self._keep(tensor)
        out = func(*args, **kwargs)
        is_view = any(
            one.alias_info and not one.alias_info.is_write for one in func._schema.returns
        )
        if not is_view and torch.Tag.inplace_view not in func.tags:
            self._note(func, args, kwargs, out)
        return out

    def _code(self, code: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
        # It empties the list that it is given.
        given = list(inputs)
        for tensor in _tensors(given):
            self._keep(tensor)
        out = code(inputs)

        def again(*tensors: Any) -> Any:
            return code(list(tensors))

        self._note(again, given, {}, out)
        return out

    def _note(self, operation: Any, args: Any, kwargs: Any, out: Any) -> None:
        # Aliases: how a tensor is looked at may change later, but not its address.
        self.calls.append((operation, args, kwargs, [one.detach() for one in _tensors(out)]))
        self._made.update(tensor.untyped_storage().data_ptr() for tensor in _tensors(out))

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in self._made and storage not in self._kept:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self._kept[storage] = whole, whole.clone()

    @torch.no_grad()
    def undo(self) -> None:
        """Restores what was overwritten."""
        for whole, kept in self._kept.values():
            whole.copy_(kept)


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    if "batch_norm" in str(func) and "backward" not in str(func):
        # torch does not say so of the running statistics.
        yield from _tensors(args[3:5])
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
