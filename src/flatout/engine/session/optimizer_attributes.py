"""Counters and the like that an experiment's own optimizer keeps in plain attributes.

torch's `Optimizer.state_dict` contains only what belongs to weights and groups. Changes to numbers,
and to lists and dicts of numbers, are in the checkpoint too, unless the class has a `state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from flatout.engine.model.module_attributes import MISSING, can_be_saved, has_changed, remembered
from flatout.engine.optim.optimizers import Optimizers

Values = dict[str, dict[str, Any]]

# What every optimizer has.
_OF_ALL = ("defaults", "param_groups", "state")


class OptimizerAttributes:
    """Finds changes in the attributes of own optimizers since they were built.

    Args:
        optimizers: as they were built, before their first step.
    """

    def __init__(self, optimizers: Optimizers) -> None:
        self._own = {
            name: optimizer for name, optimizer in optimizers.by_name.items() if _is_own(optimizer)
        }
        self._begun = {
            (name, attribute): remembered(value) for name, attribute, value in self._attributes()
        }

    def state(self) -> Values:
        """The changes so far, by optimizer and attribute."""
        values: Values = {}
        for name, attribute, value in self._attributes():
            if has_changed(self._begun.get((name, attribute), MISSING), value):
                values.setdefault(name, {})[attribute] = value
        return values

    def load_state(self, values: Values) -> None:
        """Restores what `state` returned."""
        for name in values.keys() & self._own.keys():
            for attribute, value in values[name].items():
                setattr(self._own[name], attribute, value)

    def _attributes(self) -> Iterator[tuple[str, str, Any]]:
        for name, optimizer in self._own.items():
            for attribute, value in vars(optimizer).items():
                if attribute not in _OF_ALL and _is_of_numbers(value):
                    yield name, attribute, value


def _is_own(optimizer: Optimizer) -> bool:
    kind = type(optimizer)
    is_torchs = f"{kind.__module__}.".startswith("torch.")
    return not is_torchs and kind.state_dict is Optimizer.state_dict


def _is_of_numbers(value: Any) -> bool:
    # Not whether something was prepared already: a resume has to prepare it, too.
    if isinstance(value, bool | str | Tensor) or value is None:
        return False
    return can_be_saved(value)
