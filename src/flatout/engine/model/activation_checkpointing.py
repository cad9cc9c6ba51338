"""Activation checkpointing: repeated blocks keep only their inputs and recompute the rest.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost",
https://arxiv.org/abs/1604.06174; torch.utils.checkpoint does the work.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.checkpoint import checkpoint

from flatout.errors import RunFailed


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The parts of a model that can be checkpointed, by module name.

    usable: repeated blocks, or whole models that have their own checkpointing.
    with_running_statistics: blocks that must not be checkpointed: a second forward pass would
        update the running statistics of their norms twice.
    """

    usable: dict[str, nn.Module]
    with_running_statistics: tuple[str, ...]


def repeated_blocks(model: nn.Module) -> Blocks:
    """Finds the blocks: children of one class in a Sequential or ModuleList, at least two.

    The outermost such lists count. Single torch layers are not blocks, because they keep only their
    input anyway. A model of the transformers library knows its blocks itself.
    """
    blocks: dict[str, nn.Module] = {}
    for name, block in _blocks_in(model, ""):
        # A block under two names counts once.
        if not any(block is other for other in blocks.values()):
            blocks[name] = block
    moving = [name for name, block in blocks.items() if _has_running_statistics(block)]
    return Blocks(
        usable={name: block for name, block in blocks.items() if name not in moving},
        with_running_statistics=tuple(moving),
    )


def listed_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The same blocks, by their names; those of models that know theirs, too, one by one."""
    return dict(_blocks_in(model, "", takes_whole=False))


def _blocks_in(
    module: nn.Module, name: str, *, takes_whole: bool = True
) -> Iterator[tuple[str, nn.Module]]:
    if takes_whole and has_its_own(module) and not _has_running_statistics(module):
        yield name, module
        return
    children = list(module.named_children())
    is_list = isinstance(module, nn.Sequential | nn.ModuleList)
    is_repeated = len(children) > 1 and len({type(child) for _, child in children}) == 1
    for child_name, child in children:
        path = f"{name}.{child_name}" if name else child_name
        if is_list and is_repeated and not _is_single_layer(child):
            yield path, child
        else:
            yield from _blocks_in(child, path, takes_whole=takes_whole)


def has_its_own(module: nn.Module) -> bool:
    """Whether it has a checkpointing of its own, as the models of the transformers library."""
    return bool(getattr(module, "supports_gradient_checkpointing", False)) and hasattr(
        module, "gradient_checkpointing_enable"
    )


def name_of_its_own(model: Any) -> str:
    """The method prefix of a model's own checkpointing."""
    # Until transformers 5.23 it was named after gradients.
    is_new = hasattr(model, "activation_checkpointing_enable")
    return "activation_checkpointing" if is_new else "gradient_checkpointing"


def _switch_its_own(model: Any, options: dict[str, Any] | None) -> None:
    """Switches it on with these arguments of torch's checkpoint; off if they are None."""
    name = name_of_its_own(model)
    if options is not None:
        getattr(model, f"{name}_enable")(**{f"{name}_kwargs": options})
    else:
        getattr(model, f"{name}_disable")()


def _keep_switched(model: Any, share: float) -> int:
    """Leaves it on in so many of a model's own blocks, the first ones; gives how many these are."""
    name = "gradient_checkpointing"
    # The model has the switch, too, and some have stacks that have it: the innermost ones count.
    layers = [
        module
        for module in model.modules()
        if getattr(module, name, False) is True
        and not any(getattr(m, name, False) is True for m in module.modules() if m is not module)
    ]
    num_switched = math.ceil(share * len(layers))
    for layer in layers[num_switched:]:
        setattr(layer, name, False)
    return max(1, num_switched)


def _has_running_statistics(module: nn.Module) -> bool:
    return any(
        isinstance(part, _BatchNorm) or (isinstance(part, _NormBase) and part.track_running_stats)
        for part in module.modules()
    )


def _is_single_layer(module: nn.Module) -> bool:
    has_children = next(module.children(), None) is not None
    return not has_children and type(module).__module__.startswith("torch.nn.")


class ActivationCheckpointing:
    """Recomputes a model's repeated blocks in the backward pass while it trains.

    The model and the names in its state_dict stay unchanged; `close` undoes it.

    share: of the blocks, that are. num_blocks: how many these are.

    Args:
        model: whose blocks they are.
        settings: makes the context in which the forward pass chooses its kernels; torch restores
            autocast by itself.
        share: of the blocks, the first so many; rounded up.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        share: float = 1.0,
    ) -> None:
        self.share = share
        options = {
            "use_reentrant": False,
            # The backward pass is outside of it, and other kernels keep other things.
            "context_fn": lambda: (contextlib.nullcontext(), settings()),
        }
        self._with_their_own: list[Any] = []
        self._wrapped: list[tuple[nn.Module, _Recomputed, Any]] = []
        self.num_blocks = 0
        blocks = repeated_blocks(model).usable
        plain = [name for name, block in blocks.items() if not has_its_own(block)]
        chosen = set(plain[: math.ceil(share * len(plain))])
        for name, block in blocks.items():
            if has_its_own(block):
                _switch_its_own(block, options)
                self._with_their_own.append(block)
                self.num_blocks += _keep_switched(block, share)
            elif name in chosen:
                self.num_blocks += 1
                before = block.__dict__.get("forward")
                recomputed = _Recomputed(name, block, options)
                # An attribute of the object hides the method of its class.
                block.forward = recomputed
                self._wrapped.append((block, recomputed, before))

    def is_without_effect(self) -> bool:
        """Whether there are blocks, and the model has called none of them: as `block(...)`."""
        calls = [recomputed.is_called for _, recomputed, _ in self._wrapped]
        return bool(calls) and not any(calls)

    def close(self) -> None:
        """Switches it off: forward passes are the model's own again."""
        for model in self._with_their_own:
            _switch_its_own(model, None)
        for block, _, before in self._wrapped:
            del block.forward
            if before is not None:
                block.forward = before
        self._with_their_own, self._wrapped = [], []


class _Recomputed:
    """A block's forward that keeps only its inputs while the block is trained."""

    def __init__(self, name: str, block: nn.Module, options: dict[str, Any]) -> None:
        self._original = block.forward
        self._options = options
        self._name = name
        self._block = block
        self._buffers = list(block.named_buffers())
        self.is_called = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if not self._block.training or not torch.is_grad_enabled():
            return self._original(*inputs, **named)
        before = [buffer._version for _, buffer in self._buffers] if not self.is_called else []
        # Dropout must draw the same numbers again: the generators' states are saved and restored.
        outputs = checkpoint(self._original, *inputs, **self._options, **named)
        if not self.is_called:
            self._check_buffers(before)
            self.is_called = True
        return outputs

    def _check_buffers(self, before: list[int]) -> None:
        for (name, buffer), version in zip(self._buffers, before, strict=True):
            if buffer._version != version:
                raise RunFailed(
                    "block-changes-its-buffers",
                    f"the block `{self._name}` cannot be recomputed in the backward pass.",
                    because=f"its forward pass changes its buffer `{name}`, and would do so twice",
                    fix="train it with --use activation_checkpointing=false",
                )
