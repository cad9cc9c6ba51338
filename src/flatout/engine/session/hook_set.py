"""The hooks of an experiment, and what of them is part of a checkpoint."""

from __future__ import annotations

import enum
import functools
import inspect
import re
import types
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from flatout.engine.experiment import Experiment
from flatout.engine.hooks import CALLS, HookContext
from flatout.engine.model.module_attributes import MISSING, can_be_saved, has_changed, remembered
from flatout.engine.runtime.user_code import kind_text, location_of
from flatout.errors import UsageError, nearest

# What cannot change: the factory makes it again.
_FIXED = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type,
    functools.partial, PurePath, frozenset, bytes, complex, range, re.Pattern, enum.Enum,
    torch.dtype, torch.device,
)  # fmt: skip


class HookSet:
    """The hooks of one session.

    by_name: all of them.
    metrics: of the last validation; part of the state, so that hooks see it after a resume, too.
    begun: names of those whose `on_start` is over.

    Args:
        experiment: makes them.

    Raises:
        UsageError: bad-hook.
    """

    def __init__(self, experiment: Experiment) -> None:
        made = experiment.hooks() if experiment.hooks is not None else ()
        hooks = list(made) if isinstance(made, list | tuple) else [made]
        self.by_name: dict[str, Any] = {}
        for hook in hooks:
            _check_hook(hook)
            name = kind = type(hook).__name__
            while name in self.by_name:
                name = f"{kind} {len(self.by_name) + 1}"
            self.by_name[name] = hook
        self._built = {name: _attributes(hook) for name, hook in self.by_name.items()}
        self._values = {
            name: {own: remembered(value) for own, value in built.items()}
            for name, built in self._built.items()
        }
        self.metrics: dict[str, float] = {}
        self.begun: set[str] = set()

    def has(self, call: str) -> bool:
        """Whether one of them has that method."""
        return any(hasattr(hook, call) for hook in self.by_name.values())

    def call(self, call: str, context: HookContext) -> None:
        """Calls that method of all that have it; `on_start` only where it was not called yet."""
        for name, hook in self.by_name.items():
            if call == "on_start" and name in self.begun:
                continue
            if hasattr(hook, call):
                getattr(hook, call)(context)
            self.begun.add(name)

    def check_validated(self) -> None:
        """Refuses a hook that waits for validations in a training without.

        Not where it is made: a search leaves validation out.

        Raises:
            UsageError: bad-hook.
        """
        for hook in self.by_name.values():
            if hasattr(hook, "on_validation"):
                raise _bad_hook(
                    f"the hook `{type(hook).__name__}` has `on_validation`, but nothing is "
                    "validated.",
                    "give the experiment validation_data, or use on_epoch",
                )

    def check(self) -> None:
        """Refuses a hook with attributes that checkpoints cannot contain.

        Raises:
            UsageError: hook-state-not-stored.
        """
        for name, hook in self.by_name.items():
            built = self._built[name]
            if hasattr(hook, "state_dict"):
                continue
            for own, value in _attributes(hook).items():
                is_fixed = isinstance(value, _FIXED) and built.get(own, MISSING) is value
                if not can_be_saved(value) and not is_fixed:
                    raise _not_stored(hook, own, value)

    def state(self) -> dict[str, Any] | None:
        """What a resume continues with; None without hooks."""
        if not self.by_name:
            return None
        self.check()
        return {
            "begun": sorted(self.begun),
            "metrics": self.metrics,
            "hooks": {name: self._state_of(name, hook) for name, hook in self.by_name.items()},
        }

    def _state_of(self, name: str, hook: Any) -> Any:
        if hasattr(hook, "state_dict"):
            return hook.state_dict()
        built = self._values[name]
        values = {
            own: value.detach() if isinstance(value, Tensor) else value
            for own, value in _attributes(hook).items()
            if can_be_saved(value) and has_changed(built.get(own, MISSING), value)
        }
        # A hook may keep on the CPU what it has seen on a GPU.
        on_cpu = [n for n, value in values.items() if isinstance(value, Tensor) and value.is_cpu]
        return {"values": values, "on_cpu": on_cpu}

    def load_state(
        self, state: Mapping[str, Any] | None, device: torch.device, *, is_changed: bool
    ) -> None:
        """Continues with a state; hooks that are not in it begin.

        Args:
            state: what `state` returned; None in checkpoints without hooks.
            device: where tensors are put that were not on the CPU.
            is_changed: the experiment's text is another one, and so may its hooks be.

        Raises:
            UsageError: experiment-changed.
        """
        if state is None:
            return
        own, stored = set(self.by_name), set(state["hooks"])
        if own != stored and not is_changed:
            raise UsageError(
                "experiment-changed",
                "the run's checkpoint has other hooks than the experiment makes now.",
                because=f"{_listed(stored)} in it, {_listed(own)} now",
                fix="restore the experiment this run was started with, or start a new run",
            )
        for name in own & stored:
            _load(self.by_name[name], state["hooks"][name], device)
        self.begun = set(state["begun"]) & own
        self.metrics = dict(state["metrics"])


def _attributes(hook: Any) -> dict[str, Any]:
    """Its attributes, those in slots too."""
    state: Any = object.__getstate__(hook)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def _load(hook: Any, state: Any, device: torch.device) -> None:
    if hasattr(hook, "state_dict"):
        hook.load_state_dict(state)
        return
    for name, value in state["values"].items():
        now = getattr(hook, name, None)
        if not isinstance(value, Tensor):
            setattr(hook, name, value)
        elif isinstance(now, Tensor) and (now.shape, now.dtype) == (value.shape, value.dtype):
            # The loss may hold this very tensor.
            with torch.no_grad():
                now.copy_(value)
        else:
            place = torch.device("cpu") if name in state["on_cpu"] else device
            setattr(hook, name, value.to(place, copy=True))


def _check_hook(hook: Any) -> None:
    kind = type(hook).__name__
    if isinstance(hook, type):
        problem = f"`hooks` returned the class {hook.__name__}."
        raise _bad_hook(problem, f"make one: {hook.__name__}()")
    for name in dir(hook):
        if name.startswith("on_") and name not in CALLS and callable(getattr(hook, name)):
            problem = f"the hook `{kind}` has a method `{name}`, which is never called."
            raise _bad_hook(problem, nearest(name, CALLS), getattr(hook, name))
    calls = [name for name in CALLS if hasattr(hook, name)]
    if not calls:
        raise _bad_hook(
            f"`hooks` returned {kind_text(hook)}, which is no hook.",
            f"return an object, or a list of objects, with any of {', '.join(CALLS)}",
        )
    for name in calls:
        try:
            inspect.signature(getattr(hook, name)).bind("context")
        except TypeError as error:
            raise _bad_hook(
                f"`{name}` of the hook `{kind}` is not called like this.",
                f"define it as `def {name}(self, context):`",
                getattr(hook, name),
            ) from error
    if hasattr(hook, "state_dict") != hasattr(hook, "load_state_dict"):
        raise _bad_hook(
            f"the hook `{kind}` has only one of `state_dict` and `load_state_dict`.",
            "define both, or neither: then its attributes are kept",
        )


def _bad_hook(problem: str, fix: str, function: Any = None) -> UsageError:
    location = location_of(function) if function is not None else None
    because = location.with_code if location is not None else None
    return UsageError("bad-hook", problem, because=because, fix=fix)


def _not_stored(hook: Any, name: str, value: Any) -> UsageError:
    kind = type(hook).__name__
    return UsageError(
        "hook-state-not-stored",
        f"the hook `{kind}` keeps `{name}`, {kind_text(value)}, which checkpoints cannot contain.",
        because="a resumed run could not continue with it; attributes may be numbers, texts, lists "
        "and dicts of these, and tensors",
        fix=f"give `{kind}` state_dict() and load_state_dict(state); model and optimizer are in "
        "the context of each call",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
