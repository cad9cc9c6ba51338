"""An optimizer's own step as one compiled function.

What changes from step to step must be a tensor, or it would be compiled in: the learning rates, and
the step count, which Adam takes powers with. Both are fp64 while the code runs, as they are
in Python; before and after, the optimizer is as torch knows it, for schedules and checkpoints.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flatout.engine.optim.fused_step import FusedStep, has_step_hooks, own_step
from flatout.engine.progress import TrainState
from flatout.engine.step.compiled_loss import Compiler
from flatout.schema.recipe import Recipe


class OptimizerSteps:
    """Makes the steps of a session's optimizers: compiled, if the recipe says so.

    compiler: of these steps; None where they are not compiled.

    Args:
        recipe: says whether, and how.
        position: of the training.
    """

    def __init__(self, recipe: Recipe, position: Callable[[], TrainState]) -> None:
        is_compiled = recipe.compiled.value in ("optimizer", "both")
        self.compiler = Compiler(recipe) if is_compiled else None
        self.position = position

    def adapt(self, recipe: Recipe) -> None:
        """Continues uncompiled, if the recipe says so."""
        if recipe.compiled.value not in ("optimizer", "both"):
            self.compiler = None

    @contextlib.contextmanager
    def as_written(self) -> Iterator[None]:
        """Nothing of it is compiled: where operators are looked at, torch refuses compiled code."""
        compiler, self.compiler = self.compiler, None
        try:
            yield
        finally:
            self.compiler = compiler

    def step_of(self, optimizer: Optimizer) -> Callable[[], None]:
        """A function that makes an optimizer's steps."""
        quick = FusedStep(optimizer)
        return quick if self.compiler is None else _CompiledStep(optimizer, self, quick)


class _CompiledStep:
    """An optimizer's steps, the first as it is written, which makes the optimizer's state."""

    def __init__(self, optimizer: Optimizer, steps: OptimizerSteps, quick: FusedStep) -> None:
        assert steps.compiler is not None
        self._optimizer = optimizer
        self._steps = steps
        self._quick = quick
        self._compiled = steps.compiler.compiled(_bare_step(optimizer))
        self._numbers: _Numbers | None = None
        self._has_state = False

    def __call__(self) -> None:
        # What has been trained before has its state; what a hook has just unfrozen has none.
        position = self._steps.position()
        self._has_state |= position.step not in (0, position.refrozen_step)
        if self._steps.compiler is None or has_step_hooks(self._optimizer):
            self._quick()
        elif not self._has_state:
            own_step(self._optimizer)
            self._has_state = True
        else:
            self._numbers = self._numbers or _Numbers(self._optimizer)
            self._numbers.widen()
            try:
                self._compiled()
            finally:
                self._numbers.restore()


def _bare_step(optimizer: Optimizer) -> Callable[[], None]:
    """The step without what torch puts around it, which no graph can hold: profiling and hooks."""
    step: Any = inspect.unwrap(type(optimizer).step)

    def bare() -> None:
        with torch.no_grad():
            step(optimizer)

    return bare


class _Numbers:
    """An optimizer's learning rates and counts of steps, as fp64 tensors while its code runs."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._groups = optimizer.param_groups
        self._states = optimizer.state
        self._rates = [torch.zeros((), dtype=torch.float64) for _ in self._groups]
        self._group_settings: list[dict[str, Any]] = []
        self._counted: list[tuple[dict[str, Any], Tensor]] = []
        self._counts: list[Tensor] = []

    def widen(self) -> None:
        """Before the step: rates and counts as they are now, in fp64."""
        names = ("lr", "foreach", "fused")
        self._group_settings = [
            {n: group[n] for n in names if n in group} for group in self._groups
        ]
        for group, rate in zip(self._groups, self._rates, strict=True):
            if isinstance(group.get("lr"), float):
                group["lr"] = rate.fill_(group["lr"])
            # The code is made of the operators themselves, not of kernels that hold many.
            group.update({n: False for n in ("foreach", "fused") if n in group})
        self._counted = [
            (state, state["step"])
            for state in self._states.values()
            if isinstance(state.get("step"), Tensor)
        ]
        narrow = [count for _, count in self._counted]
        if len(self._counts) != len(narrow):
            self._counts = [count.double() for count in narrow]
        elif narrow:
            torch._foreach_copy_(self._counts, narrow)
        for (state, _), wide in zip(self._counted, self._counts, strict=True):
            state["step"] = wide

    def restore(self) -> None:
        """After the step: the numbers as torch keeps them."""
        if self._counted:
            torch._foreach_copy_([count for _, count in self._counted], self._counts)
        for state, count in self._counted:
            state["step"] = count
        for group, settings in zip(self._groups, self._group_settings, strict=True):
            group.update(settings)
