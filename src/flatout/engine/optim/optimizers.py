"""The optimizers of an experiment: one, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from flatout.engine.optim.fused_step import (
    can_be_fused,
    check_implementation,
    load_optimizer,
    match_layout,
    set_capturable,
    set_implementation,
)
from flatout.engine.runtime.user_code import kind_text
from flatout.errors import UsageError
from flatout.schema.recipe import OptimizerImplementation

# What `updates[...]` calls the optimizer of an experiment that has only one.
ONLY = "optimizer"


class Optimizers:
    """One or several optimizers, treated alike.

    given: what the experiment returned, which is also what its schedule is built from.
    by_name: the optimizers; a single one is named `optimizer`.

    Args:
        given: an optimizer, or several by name.

    Raises:
        UsageError: bad-experiment.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self._are_named = isinstance(given, Mapping)
        self.by_name: dict[str, Optimizer] = dict(given) if self._are_named else {ONLY: given}
        if not self.by_name:
            raise _bad("`optimizer` returned an empty dict.", "return at least one optimizer")
        for name, optimizer in self.by_name.items():
            if not isinstance(optimizer, Optimizer) or not isinstance(name, str):
                what = kind_text(optimizer) + f" for {name!r}" * self._are_named
                raise _bad(
                    f"`optimizer` returned {what}.",
                    "return an optimizer, or a dict of them by name",
                )
            if isinstance(optimizer, torch.optim.LBFGS):
                raise _bad(
                    "`optimizer` returned LBFGS, whose step recomputes the loss.",
                    "use another optimizer, such as torch.optim.AdamW",
                    because="optimizers get only gradients here, and cannot evaluate the loss",
                )

    @property
    def only(self) -> Optimizer:
        """The optimizer of an experiment without a step of its own, which has just one."""
        (optimizer,) = self.by_name.values()
        return optimizer

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    @property
    def can_be_fused(self) -> bool:
        """Whether torch has a fused kernel for each of them."""
        return all(map(can_be_fused, self))

    def num_weights(self) -> list[list[int]]:
        """The number of weights in each of their parameter groups."""
        return [[len(group["params"]) for group in optimizer.param_groups] for optimizer in self]

    def check_implementation(
        self, implementation: OptimizerImplementation, *, can_be_fused: bool
    ) -> None:
        """Refuses what torch does not have for one of them.

        Raises:
            UsageError: optimizer-has-no-such-implementation.
        """
        for optimizer in self:
            check_implementation(optimizer, implementation, can_be_fused=can_be_fused)

    def set_implementation(self, implementation: OptimizerImplementation) -> None:
        """Switches all of them to that implementation."""
        for optimizer in self:
            set_implementation(optimizer, implementation)

    def set_capturable(self, *, is_captured: bool) -> None:
        """Lets all of them keep every number of their updates on the device, or as it was built."""
        for optimizer in self:
            set_capturable(optimizer, is_captured=is_captured)

    def match_layout(self) -> None:
        """Gives their states the strides of the weights."""
        for optimizer in self:
            match_layout(optimizer)

    def learning_rates(self) -> dict[str, float]:
        """The rate of each one's first group."""
        return {
            name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in self.by_name.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Their states: by name if they have names."""
        if not self._are_named:
            state: dict[str, Any] = self.given.state_dict()
            return state
        return {name: optimizer.state_dict() for name, optimizer in self.by_name.items()}

    def load_state_dict(
        self, state: dict[str, Any], implementation: OptimizerImplementation
    ) -> None:
        """Takes states over, of whatever implementation.

        Raises:
            ValueError: the state is that of other optimizers.
        """
        states = state if self._are_named else {ONLY: state}
        if set(states) != set(self.by_name):
            raise ValueError(f"optimizers {sorted(states)} in it, {sorted(self.by_name)} now")
        for name, optimizer in self.by_name.items():
            load_optimizer(optimizer, states[name])
            set_implementation(optimizer, implementation)
            match_layout(optimizer)


def _bad(problem: str, fix: str, because: str | None = None) -> UsageError:
    return UsageError("bad-experiment", problem, because=because, fix=fix)
