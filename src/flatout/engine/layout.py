"""How a model is laid out before it is trained: whole on a device, or in parts on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from flatout.engine.group import Group
from flatout.engine.optimizers import Optimizers
from flatout.engine.ranks import ALONE, Ranks
from flatout.engine.sharding import Sharding
from flatout.nouns.recipe import Choice
from flatout.nouns.recipe import Sharding as Wish
from flatout.tune.sharding import default_sharding, state_bytes

# Adam's two; who has more is spread a little late, who has fewer a little early.
_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is wished of a model's layout.

    ranks: those that train it. wish: `sharding` as it was fixed or decided before; None leaves it
    to the sizes. init: gives the model other weights to begin with.
    """

    ranks: Ranks = ALONE
    wish: Wish | None = None
    init: Callable[[nn.Module], None] | None = None

    def chosen(self, model: nn.Module, device: torch.device) -> Choice[Wish]:
        """Whether a model on the CPU is to be spread; the same on all ranks."""
        if self.ranks.size == 1:
            return Choice(value="none", why="one rank holds the whole model")
        if self.wish is not None:
            return Choice(value=self.wish, why="decided before")
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        known = [one for one in self.ranks.gathered(free, about="free memory") if one is not None]
        weights = [(p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
        needed = state_bytes(
            sum(size for size, _ in weights),
            sum(size for size, is_trained in weights if is_trained),
            _MOMENTS,
        )
        return default_sharding(needed, min(known, default=None))

    def spread(self, model: nn.Module, optimizers: Optimizers, device: torch.device) -> Sharding:
        """Spreads a model on the CPU over the ranks; its optimizers are to be built anew.

        Raises:
            UsageError: ranks-do-not-fit.
        """
        assert isinstance(self.ranks, Group)
        self.ranks.attach(device)
        sharding = Sharding(self.ranks)
        sharding.spread(model, optimizers)
        return sharding


ON_ONE_RANK = Layout()
