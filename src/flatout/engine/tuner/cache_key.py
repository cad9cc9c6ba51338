"""The facts that must be equal for a known recipe to hold again."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

from flatout import __version__
from flatout.engine.session.session import BuiltExperiment
from flatout.engine.tensors.nested import tensors_in
from flatout.system.cpu_name import driver_name, processor_name


def identity(built: BuiltExperiment, fixed: dict[str, Any]) -> dict[str, Any]:
    """Model, shapes, device and versions, as facts by name."""
    experiment, device = built.experiment, built.device
    return {
        "flatout": __version__,
        "torch": str(torch.__version__),
        "device": _device_name(device),
        "num_cores": built.facts.num_cores,
        "num_threads": built.facts.num_threads,
        "cpus": built.facts.topology.shape,
        "model": _digest(_model_lines(built)),
        "optimizer": _digest(_optimizer_lines(built)),
        "data": built.facts.data_kind,
        "sample": _data_text(built),
        "batch_size": experiment.batch_size,
        "loss": getattr(experiment.loss, "__qualname__", type(experiment.loss).__name__),
        "code": _digest(_code_lines(built)),
        "clip_norm": experiment.clip_norm,
        "ema": experiment.ema,
        "step_hook": built.facts.has_step_hook,
        "fixed": fixed,
    }


def _model_lines(built: BuiltExperiment) -> list[str]:
    modules = [
        f"{name} {type(module).__qualname__}" for name, module in built.model.named_modules()
    ]
    weights = [
        f"{name} {tuple(weight.shape)} {weight.dtype} {weight.requires_grad}"
        for name, weight in built.model.named_parameters()
    ]
    # Dropout rates, strides and the like are in a module's own text.
    return [*modules, *weights, str(built.model)]


def _code_lines(built: BuiltExperiment) -> Iterator[str]:
    """The code of loss, collate and the model's own classes: a recipe was judged right for that.

    Not what they call elsewhere, nor what a closure holds.
    """
    experiment = built.experiment
    classes = {cls for module in built.model.modules() for cls in type(module).__mro__}
    own_classes = [
        cls for cls in classes if cls.__module__.partition(".")[0] not in ("torch", "builtins")
    ]
    for owner in (experiment.loss, experiment.collate, *sorted(own_classes, key=str)):
        for name, code in _codes_of(owner):
            yield f"{name} {_code_text(code)}"


def _codes_of(owner: Any) -> Iterator[tuple[str, CodeType]]:
    """The code of a function, of one with arguments given, of a class or of an instance of one."""
    while isinstance(owner, functools.partial):
        owner = owner.func
    if inspect.isroutine(owner):
        members: Iterable[tuple[str, Any]] = [(getattr(owner, "__name__", ""), owner)]
    else:
        members = sorted(vars(owner if isinstance(owner, type) else type(owner)).items())
    for name, member in members:
        function = inspect.unwrap(getattr(member, "__func__", member))
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield name, code


def _code_text(code: CodeType) -> str:
    """The source text, independent of its place in the file."""
    constants = [
        _code_text(constant)
        if isinstance(constant, CodeType)
        # The order of a set is another one in each process.
        else repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        for constant in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _optimizer_lines(built: BuiltExperiment) -> list[str]:
    # A learning rate changes nothing about the speed.
    flags = [
        {name: str(value) for name, value in group.items() if name not in ("params", "lr")}
        for group in built.optimizers.only.param_groups
    ]
    return [type(built.optimizers.only).__qualname__, *map(str, flags)]


def _data_text(built: BuiltExperiment) -> str:
    """The form of a sample, as far as it is known without reading one."""
    data, kind = built.train_data, built.facts.data_kind
    if kind == "tensors":
        return " ".join(f"{tuple(tensor.shape[1:])} {tensor.dtype}" for tensor in tensors_in(data))
    name = type(data).__qualname__
    return f"{name} of {len(data)}" if kind == "map-style" else name


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        # torch does not tell the driver; its CUDA version and the card's name are what there is.
        return f"{torch.cuda.get_device_name(device)} cuda {torch.version.cuda} {driver_name()}"
    return f"{processor_name()} {torch.backends.cpu.get_cpu_capability()}"
