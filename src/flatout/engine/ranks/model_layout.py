"""The layout of a model for training: whole on a device, or in parts on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from flatout.engine.ranks.fsdp import FullySharded
from flatout.engine.ranks.meta_device_build import without_memory
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.runtime import rng
from flatout.schema.recipe import Choice, Exchange
from flatout.schema.recipe import Sharding as RequestedSharding
from flatout.tune.sharding import default_sharding, state_bytes

# Adam's two; who has more is spread a little late, who has fewer a little early.
_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model on the CPU, and whether it should be sharded over the ranks.

    why_whole: why this rank could not build it without memory for its weights; None where it could,
    or had no reason to.
    """

    model: nn.Module
    sharding: Choice[RequestedSharding]
    why_whole: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """The requested layout of a model.

    ranks: those that train it. requested: `sharding` as it was fixed or decided before; None leaves
    it to the sizes. exchange: how parts of it travel. init: gives the model other weights to begin
    with.
    """

    ranks: RankGroup = ALONE
    requested: RequestedSharding | None = None
    exchange: Exchange = "agreed"
    init: Callable[[nn.Module], None] | None = None

    def built(
        self,
        build: Callable[[], nn.Module],
        use: Callable[[nn.Module], object],
        device: torch.device,
    ) -> BuiltModel:
        """The model on the CPU, and whether it should be sharded over the ranks.

        Where it may be, ranks other than the first build it without memory for its weights, if they
        can. Afterwards the random generators are where building all of it has left them.

        Args:
            build: builds it whole, the same each time.
            use: what else is built from it before it is spread.
            device: on which it is trained.
        """
        may_be_spread = self.requested == "full" or (
            self.requested is None and device.type == "cuda"
        )
        model: nn.Module | str | None = None
        if may_be_spread and not self.ranks.is_first:
            model = without_memory(build, use)
        reason = model if isinstance(model, str) else None
        is_whole = not isinstance(model, nn.Module)
        model = model if isinstance(model, nn.Module) else build()
        chosen = self._chosen(model, device)
        if chosen.value != "full" and not is_whole:
            model = build()
        if self.init is not None:
            self.init(model)
        if chosen.value == "full":
            # What is built next may draw, too.
            states = self.ranks.broadcast_from_rank0(
                rng.host_generator_states, about="what was drawn"
            )
            rng.restore_host_generators(states)
        return BuiltModel(model=model, sharding=chosen, why_whole=reason)

    def _chosen(self, model: nn.Module, device: torch.device) -> Choice[RequestedSharding]:
        """Whether a model on the CPU should be sharded; the same on all ranks."""
        if self.ranks.size == 1:
            return Choice(value="none", why="a single rank holds the whole model")
        if self.requested is not None:
            return Choice(value=self.requested, why="decided earlier in this run")
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        known = [
            num_bytes
            for num_bytes in self.ranks.all_gather(free, about="free memory")
            if num_bytes is not None
        ]
        weights = [(p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
        needed = state_bytes(
            sum(size for size, _ in weights),
            sum(size for size, is_trained in weights if is_trained),
            _MOMENTS,
        )
        return default_sharding(needed, min(known, default=None))

    def spread(self, built: BuiltModel, device: torch.device) -> FullySharded:
        """Spreads a model on the CPU over the ranks, block by block.

        Its optimizers must be built again after it. Nothing else may keep its weights, such as the
        optimizers built before: they would stay in memory.

        Raises:
            UsageError: ranks-do-not-fit.
        """
        assert isinstance(self.ranks, MultiRank)
        self.ranks.attach(device)
        sharding = FullySharded(self.ranks, is_agreed=self.exchange == "agreed")
        sharding.spread(built.model)
        sharding.whys_whole = self.ranks.all_gather(built.why_whole, about="built whole")
        return sharding


ON_ONE_RANK = ModelLayout()
