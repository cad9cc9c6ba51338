"""A GPU that is not there: torch's fake tensors on `cuda:0`, with shapes and without values.

What a step does to tensors happens as on a GPU up to the kernels, which do not run. Operators
refuse tensors of two devices; asking a tensor for its value raises, as it would wait on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch

_GIB = 2**30
# What C++ takes a fake CUDA tensor's device for: one without streams, which backward would ask for.
_SEEN_IN_CPP = torch.device("cpu", 1)
_GPU = torch.device("cuda", 0)
_PROPERTIES = SimpleNamespace(
    name="made-up GPU", major=9, minor=0, total_memory=80 * _GIB, multi_processor_count=132,
    gcnArchName="", uuid="0", L2_cache_size=50 * 2**20,
)  # fmt: skip


class FakeGpu(FakeTensorMode):
    """The mode of a machine without a GPU, whatever `torch.cuda.is_available` says meanwhile.

    num_scaler_waits: how often torch's loss scaler would have waited for the GPU.
    """

    num_scaler_waits = 0
    _is_watched = False

    @property
    def avoid_device_init(self) -> bool:
        """Nothing is computed on the device, not even a constant."""
        return True

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Copies in it that wait for the GPU raise WaitingCopy."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    def dispatch(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """As torch's, except for what C++ takes the device for, and sums of sparse gradients."""
        if self._is_watched and _is_waiting(func, args, kwargs or {}):
            raise WaitingCopy(f"{func}: a copy between CPU and GPU that the host waits for")
        if func is torch.ops.aten.add_.Tensor and all(_is_sparse(one) for one in args[:2]):
            # Torch has no fake one, and would compute it on the device. What matters here is the
            # same: it stays where it is, and the host is asked nothing.
            return args[0]
        if func is torch.ops.aten._pin_memory.default:
            # There is no GPU for which memory could be pinned.
            return args[0]
        if func in _FUSED_BY_TENSOR:
            # The same: of these torch has fakes for rates that are Python's alone.
            _check_places(args, kwargs)
            return None
        given = dict(kwargs or {})
        if given.get("device") == _SEEN_IN_CPP:
            given["device"] = _GPU
        return super().dispatch(func, types, args, given)


class WaitingCopy(Exception):
    """A copy of numbers to or from a GPU that is not asked for as `non_blocking`."""


def _is_waiting(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    if func is torch.ops.aten._to_copy.default:
        to = torch.device(kwargs.get("device") or args[0].device)
        is_to_gpu = to.type == "cuda" or to == _SEEN_IN_CPP
        return is_to_gpu is not _is_on_gpu(args[0]) and not kwargs.get("non_blocking", False)
    if func is torch.ops.aten.copy_.default:
        is_asked = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return _is_on_gpu(args[0]) is not _is_on_gpu(args[1]) and not is_asked
    if func is torch.ops.aten.index.Tensor and _is_on_gpu(args[0]):
        # Places that are on the CPU are copied first.
        return any(one is not None and not _is_on_gpu(one) and one.dim() for one in args[1])
    return False


def _is_on_gpu(tensor: Tensor) -> bool:
    # Not `is_cuda`, which C++ answers.
    return tensor.device.type == "cuda"


_FUSED_BY_TENSOR = (
    torch.ops.aten._fused_adam_.tensor_lr, torch.ops.aten._fused_adamw_.tensor_lr,
    torch.ops.aten._fused_sgd_.tensor_lr,
)  # fmt: skip


def _check_places(args: Any, kwargs: Mapping[str, Any] | None) -> None:
    """Refuses tensors that are not on the GPU, as a fused kernel would."""
    places = {one.device for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
    if places != {_GPU}:
        raise RuntimeError(f"a fused update has tensors on two different devices: {places}")


def _is_sparse(one: object) -> bool:
    return isinstance(one, Tensor) and one.is_sparse


def _device_in_cpp(args: Any) -> torch.device:
    tensor = args[0]
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    device: torch.device = tensor.fake_device
    return _SEEN_IN_CPP if device.type == "cuda" else device


class _Mark:
    """In place of a stream or an event: the work before it is never done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Nothing runs that could reach it."""

    def query(self) -> bool:
        """Never passed, so that nobody reads what was to be there by then."""
        return False


_OF_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: _PROPERTIES.name,
    "get_device_properties": lambda device=None: _PROPERTIES,
    "is_bf16_supported": lambda including_emulation=True: True,
    "mem_get_info": lambda device=None: (80 * _GIB, 80 * _GIB),
    "memory_reserved": lambda device=None: 0,
    "memory_allocated": lambda device=None: 0,
    "max_memory_reserved": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
    "manual_seed_all": lambda seed: None,
    "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
    "set_rng_state": lambda state, device=None: None,
    "current_stream": _Mark,
    "is_current_stream_capturing": lambda: False,
    "graph_pool_handle": lambda: (0, 0),
    "Stream": _Mark,
    "Event": _Mark,
}


@contextlib.contextmanager
def fake_gpu(patch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """Lets torch find one GPU, whose tensors are fake; backward stays in this thread."""
    for name, value in _OF_CUDA.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    patch.setitem(handlers, torch.ops.prim.device.default, _device_in_cpp)
    patch.setattr(nn.Module, "_apply", _apply)
    patch.setattr(torch, "tensor", functools.partial(_unpinned, torch.tensor))
    mode = FakeGpu(allow_non_fake_inputs=True)

    def counted(
        scaler: Any, optimizer: Any, state: Any, *arguments: Any, **more: Any
    ) -> float | None:
        """The step is made: torch asks the GPU whether it is, if the optimizer cannot."""
        mode.num_scaler_waits += 1
        made: float | None = optimizer.step(*arguments, **more)
        return made

    patch.setattr(torch.amp.GradScaler, "_maybe_opt_step", counted)
    with torch.autograd.set_multithreading_enabled(False), mode:
        yield mode


def _unpinned(
    make: Callable[..., Tensor], *args: Any, pin_memory: bool = False, **more: Any
) -> Tensor:
    """As torch's `tensor`: where there is no GPU it cannot pin what it makes."""
    return make(*args, **more)


class RepeatedGraphs:
    """See flatout.engine.step.cuda_graphs.GraphRecorder: a replay makes the step once more."""

    def aside(self) -> AbstractContextManager[None]:
        """There is only one stream."""
        return contextlib.nullcontext()

    def watched(self) -> AbstractContextManager[list[str]]:
        """What asks for a value raises by itself."""
        return contextlib.nullcontext([])

    def recorded(self, action: Callable[[], object]) -> RepeatedGraph:
        """Nothing is done."""
        return RepeatedGraph(action)


class RepeatedGraph:
    """A step that was recorded."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def replay(self) -> None:
        """Makes it."""
        self._action()


class NoAddresses:
    """In place of the addresses of tensors that a step changes: fake ones have none."""

    def __init__(self, parts: object) -> None:
        pass

    def restore(self) -> None:
        """Nothing has moved."""


def _apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """As torch's, which cannot swap fake parameters; shared ones stay shared."""
    made: dict[int, nn.Parameter] = getattr(fn, "made", {})
    shared = _Remembering(fn, made)
    for child in self.children() if recurse else ():
        child._apply(shared)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            applied = fn(parameter)
        if isinstance(parameter, FakeTensor) and applied.device == parameter.device:
            parameter.data = applied
        elif id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(applied, requires_grad=parameter.requires_grad)
        self._parameters[name] = made.get(id(parameter), parameter)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


class _Remembering:
    def __init__(self, fn: Callable[[Tensor], Tensor], made: dict[int, nn.Parameter]) -> None:
        self._fn, self.made = fn, made

    def __call__(self, tensor: Tensor) -> Tensor:
        return self._fn(tensor)


def with_real_reading(experiment: Experiment) -> Experiment:
    """The experiment, whose model and data are made once, on the CPU, with real values.

    What is real becomes fake on its way to the device.
    """
    with unset_fake_temporarily():
        model, data = experiment.model(), experiment.train_data()

    def same_again() -> nn.Module:
        held = (*model.parameters(), *model.buffers())
        return copy.deepcopy(model, {id(one): one for one in held})

    return dataclasses.replace(experiment, model=same_again, train_data=lambda: data)


class ReadReally:
    """A feed that reads its batches from the data as it is, with real values on the CPU."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        with unset_fake_temporarily():
            updates = self._feed.updates(epoch, first)
        while True:
            with unset_fake_temporarily():
                update = next(updates, None)
            if update is None:
                return
            yield update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)
