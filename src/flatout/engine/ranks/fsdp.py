"""A model in parts: each rank holds its share of every weight, gradient and moment.

torch's fully_shard does it. The weights of a block are gathered when it is called, and again
for its backward pass, which ends with each rank's part of the summed gradient. What the ranks send
each other goes through `SyncedPasses`, so that no rank waits for one that has given up; with
`exchange=plain` torch sends it, ahead of the block that needs it.

A checkpoint holds the whole: it is that of a single rank, and any number of ranks can continue from
it.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
https://arxiv.org/abs/1910.02054.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.engine.model.activation_checkpointing import listed_blocks
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.ranks.meta_device_build import give_memory
from flatout.engine.ranks.process_group import MultiRank, alike_tensors
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.runtime.allocator import return_freed_memory
from flatout.engine.tensors.host_copies import HostCopies
from flatout.engine.tensors.sharded import is_sharded, local_part
from flatout.engine.tensors.state_tree import copied
from flatout.errors import UsageError

# What older versions of torch do not have.
_NEEDED = (
    "set_custom_all_gather", "set_custom_reduce_scatter", "set_force_sum_reduction_for_comms",
)  # fmt: skip
# Each weight's update needs that weight's own numbers alone, whichever part of it they are in.
_ELEMENTWISE = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.RMSprop,
)  # fmt: skip


class FullySharded:
    """Spreads models over ranks, and puts their states together again.

    passes: through the model, which all ranks make together. whys_whole: for each rank, why it had
        to build the whole model, if it had to.

    Args:
        group: the ranks; they have met.
        is_agreed: they meet before each exchange within a pass.
    """

    def __init__(self, group: MultiRank, *, is_agreed: bool = True) -> None:
        # A single rank need not wait for these imports.
        from torch.distributed.device_mesh import DeviceMesh

        self._group = group
        self.whys_whole: list[str | None] = []
        self.passes = SyncedPasses(group, is_agreed=is_agreed)
        # States are rarely gathered: all ranks must take part.
        self._together = SyncedPasses(group)
        self._mesh = DeviceMesh.from_group(
            group.connection.tensors.group, device_type=group.device.type
        )

    def spread(self, model: nn.Module) -> None:
        """Shards a model on the CPU that can be sharded. Its weights are new objects afterwards, so
        optimizers must be built after it, and those built before keep the whole model in memory.

        All are cut from the first rank's weights, which are sent block by block: others need memory
        for a block and their parts.

        Raises:
            UsageError: ranks-do-not-fit.
        """
        alike_tensors(self._group, model)
        for module in [*_own_blocks(model), model]:
            give_memory(module)
            self._group.copy_from_first(module)
            self._shard(module)
            # Or the whole of each block would stay in memory, between the parts.
            return_freed_memory()

    def _shard(self, module: nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        # The whole model, too, gives its weights back after each pass: what an evaluation with
        # averaged weights has gathered would still be there in the next step.
        sharded: Any = fully_shard(module, mesh=self._mesh, reshard_after_forward=True)
        # Gradients are sums: an exchange divides them by the samples of all ranks.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
        if self.passes.is_agreed:
            sharded.set_custom_all_gather(_Gather(self.passes))
            sharded.set_custom_reduce_scatter(_Scatter(self.passes))

    @torch.no_grad()
    def whole(self, state: Any, *, is_for_all: bool = False) -> Any:
        """A state with every part gathered, as a copy on the CPU; all ranks call it alike.

        Args:
            state: nested dicts, lists and tuples with tensors in them.
            is_for_all: ranks other than the first get it, too; else they get None for each tensor.
        """
        gathering = _Gathering(is_kept=is_for_all or self._group.is_first)
        whole = self._whole(state, gathering)
        gathering.copies.fill()
        # The result of a failed transfer must be neither used nor saved.
        self._group.connection.tensors.settle()
        return whole

    def _whole(self, state: Any, gathering: _Gathering) -> Any:
        if isinstance(state, Tensor):
            # Tied weights stay tied.
            if id(state) not in gathering.known:
                whole = self._put_together(state) if is_sharded(state) else state.detach()
                gathering.add(id(state), whole)
            return gathering.known[id(state)]
        if type(state) is dict:
            return {key: self._whole(value, gathering) for key, value in state.items()}
        if type(state) in (list, tuple):
            return type(state)(self._whole(value, gathering) for value in state)
        return state

    def _put_together(self, part: Any) -> Tensor:
        own, num_rows = local_part(part), part.shape[0]
        if not part.placements[0].is_shard(0):
            return own
        padded = own.new_zeros((self._rows_of_each(num_rows), *part.shape[1:]))
        padded[: len(own)] = own
        gathered = own.new_empty((len(padded) * self._group.size, *part.shape[1:]))
        self._together.gather(gathered, padded)
        return gathered[:num_rows]

    def _rows_of_each(self, num_rows: int) -> int:
        """As torch cuts it: all ranks but the last have so many."""
        return -(-num_rows // self._group.size)

    def own(self, state: Any) -> Any:
        """The same state with this rank's parts in it, as they are; nothing is sent."""
        if isinstance(state, Tensor):
            return local_part(state.detach())
        if type(state) is dict:
            return {key: self.own(value) for key, value in state.items()}
        if type(state) in (list, tuple):
            return type(state)(self.own(value) for value in state)
        return state

    def parts_of(
        self, whole: dict[str, Any], own: dict[str, Any], optimizers: Optimizers
    ) -> dict[str, Any]:
        """This rank's parts of weights, moments and averages; on a CPU, weights and averages share
        the memory of the whole state, since a session copies them into its own.

        Args:
            whole: a session's state. own: that of the session which takes it over.
            optimizers: that session's.

        Raises:
            ValueError: a tensor has another shape.
        """
        weights = {
            name: self._part(value, own["model"].get(name))
            for name, value in whole["model"].items()
        }
        parts = {"model": weights, "optimizer": self._moments(optimizers.only, whole["optimizer"])}
        if whole["average"] is not None and own["average"] is not None:
            pairs = zip(whole["average"]["averages"], own["average"]["averages"], strict=True)
            parts["average"] = {"averages": [self._part(average, like) for average, like in pairs]}
        return parts

    def _moments(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """An optimizer's state in parts: what is as large as its weight."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        of_weights = {
            index: {
                name: self._part(value, weights[index], is_copied=True)
                if isinstance(value, Tensor) and value.shape == weights[index].shape
                else copied(value)
                for name, value in own.items()
            }
            for index, own in state["state"].items()
        }
        return {**state, "state": of_weights}

    @torch.no_grad()
    def _part(self, whole: Any, like: Any, *, is_copied: bool = False) -> Any:
        if not isinstance(whole, Tensor) or not isinstance(like, Tensor) or not is_sharded(like):
            return whole
        if whole.shape != like.shape:
            raise ValueError(f"{tuple(whole.shape)} in it, {tuple(like.shape)} now")
        from torch.distributed.tensor import DTensor

        rows_per_rank, spread = self._rows_of_each(len(whole)), like
        own = whole[rows_per_rank * self._group.rank :][:rows_per_rank]
        return DTensor.from_local(
            own.to(self._group.device, copy=is_copied),
            self._mesh,
            spread.placements,  # type: ignore[attr-defined]
            run_check=False,
            shape=whole.shape,
            stride=spread.stride(),
        )


class _Gathering:
    """What was gathered of a state so far.

    known: copies on the CPU by the tensor's id; None on ranks that keep nothing. copies: of which
    some are still to be filled.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self.known: dict[int, Tensor | None] = {}
        self.copies = HostCopies()
        self._is_kept = is_kept

    def add(self, key: int, whole: Tensor) -> None:
        """Takes a tensor as it is on the device."""
        if not self._is_kept:
            self.known[key] = None
        elif whole.is_contiguous():
            self.known[key] = self.copies.of(whole)
        else:
            # Those with other strides are small, and must keep their strides there as well.
            self.known[key] = whole.to("cpu", copy=True)


class _Memory:
    """Allocates the tensors that fully_shard sends."""

    def __init__(self, passes: SyncedPasses) -> None:
        self._passes = passes

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Memory):
    """The all-gather of fully_shard's weights."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        self._passes.gather(output_tensor, input_tensor)


class _Scatter(_Memory):
    """The reduce-scatter of fully_shard's gradients; a sum, whatever the operation's name."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._passes.scatter_sum(output_tensor, input_tensor)


def _own_blocks(model: nn.Module) -> Iterable[nn.Module]:
    """Repeated blocks that share no weights: torch cannot shard a weight twice."""
    names_of: defaultdict[int, list[str]] = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        names_of[id(weight)].append(name)
    for name, block in listed_blocks(model).items():
        weights = list(block.parameters())
        names = [name for weight in weights for name in names_of[id(weight)]]
        if weights and all(path.startswith(f"{name}.") for path in names):
            yield block


def check_can_be_sharded(model: nn.Module, optimizers: Optimizers) -> None:
    """Refuses what cannot be spread.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    from torch.distributed import fsdp

    weights = dict(model.named_parameters())
    others = [
        type(optimizer).__name__ for optimizer in optimizers if type(optimizer) not in _ELEMENTWISE
    ]
    scalars = [name for name, weight in weights.items() if weight.dim() == 0]
    strided = [name for name, weight in weights.items() if not weight.is_contiguous()]
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights.values()})
    reason = fix = None
    if not all(hasattr(getattr(fsdp, "FSDPModule", None), name) for name in _NEEDED):
        reason, fix = f"torch {torch.__version__} does not support it", "use a newer torch"
    elif others:
        reason = f"{others[0]} may need whole weights, and each rank has only a part of each"
        fix = "use AdamW or SGD"
    elif scalars:
        reason = f"`{scalars[0]}` has no dimension to shard"
        fix = "give it the shape (1,)"
    elif strided:
        reason = f"`{strided[0]}` is not contiguous in memory"
        fix = "create it with .contiguous()"
    elif len(dtypes) > 1:
        reason = f"its weights have several dtypes: {', '.join(dtypes)}"
        fix = "create them in fp32, and choose the precision with --use precision=bf16"
    if reason is not None:
        raise UsageError(
            "ranks-do-not-fit",
            "this model cannot be sharded over ranks.",
            because=reason,
            fix=f"{fix}; or train with --use sharding=none",
        )
