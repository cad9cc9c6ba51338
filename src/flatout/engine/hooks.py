"""Hooks: code of the user's that runs between updates. See `flatout docs hooks`.

This file does not import torch, so that an experiment can be defined without it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flatout.engine.runtime.user_code import kind_text, user_locations
from flatout.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

# When hooks are called; a hook has at least one of these methods.
CALLS = ("on_start", "on_epoch", "on_validation", "on_step")


@dataclass(frozen=True)
class HookEntry:
    """What a hook has logged: a number, a text, or a picture (height, width, channels)."""

    name: str
    number: float | None = None
    text: str | None = None
    picture: Tensor | None = None


@dataclass(kw_only=True)
class HookContext:
    """What a hook is given: the training as it is between two updates.

    model: what is trained; it may be changed in place.
    optimizer: what the experiment's `optimizer` returned: one, or a dict of several by name.
    step, epoch: updates and whole epochs made so far.
    metrics: of the last validation, by name; empty before the first one.
    loss: of the update, in `on_step`: a tensor, or a dict of several by name; None elsewhere.
    stop_reason: why the training is to end here; None trains on.
    logged: what hooks have logged in this call.
    """

    model: nn.Module
    optimizer: Optimizer | Mapping[str, Optimizer]
    step: int
    epoch: int
    metrics: Mapping[str, float]
    loss: Tensor | Mapping[str, Tensor] | None = None
    stop_reason: str | None = None
    logged: list[HookEntry] = field(default_factory=list)

    def stop(self, reason: str) -> None:
        """Ends the training here, in good order; the reason is shown and kept in the run."""
        self.stop_reason = self.stop_reason or str(reason)

    def log(self, name: str, value: Tensor | float | str) -> None:
        """Logs a number or a text of this step, in the run's metrics.

        Raises:
            UsageError: hook-logged-wrong-kind.
        """
        if isinstance(value, str):
            self.logged.append(HookEntry(name=str(name), text=value))
            return
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _wrong_kind("log", name, value, "a number or a text") from error
        finite = number if math.isfinite(number) else None
        self.logged.append(HookEntry(name=str(name), number=finite))

    def log_picture(self, name: str, picture: Tensor) -> None:
        """Keeps a picture of this step as a PNG file in the run's folder.

        Args:
            name: what it shows; names the file, too.
            picture: (height, width), (1, height, width) or (3, height, width): floating-point
                numbers from 0 to 1, or uint8.

        Raises:
            UsageError: hook-logged-wrong-kind.
        """
        shape = tuple(getattr(picture, "shape", ()))
        is_flat = len(shape) == 2
        if not (is_flat or (len(shape) == 3 and shape[0] in (1, 3))) or 0 in shape:
            wanted = "a tensor (height, width), (1, height, width) or (3, height, width)"
            raise _wrong_kind("log_picture", name, picture, wanted)
        if hasattr(picture, "full_tensor"):
            # Only the first rank makes the file, and the others would wait for it.
            raise _wrong_kind("log_picture", name, picture, "the whole: `tensor.full_tensor()`")
        picture = picture.detach()
        if picture.is_floating_point():
            picture = picture.float().nan_to_num().clamp(0, 1).mul(255).round()
        bytes_hwc = (picture[None] if is_flat else picture).byte().permute(1, 2, 0).cpu()
        self.logged.append(HookEntry(name=str(name), picture=bytes_hwc))


class StartHook(Protocol):
    """A hook that is called once, before the run's first update; not after a resume."""

    def on_start(self, context: HookContext) -> None:
        """Called with the model as it was built."""
        ...


class EpochHook(Protocol):
    """A hook that is called after each whole epoch, and its validation."""

    def on_epoch(self, context: HookContext) -> None:
        """Called between two epochs."""
        ...


class ValidationHook(Protocol):
    """A hook that is called after each validation."""

    def on_validation(self, context: HookContext) -> None:
        """Called with new metrics."""
        ...


class StepHook(Protocol):
    """A hook that is called after each update; slower, see `flatout docs hooks`."""

    def on_step(self, context: HookContext) -> None:
        """Called with the loss of the update."""
        ...


# What `Experiment(hooks=...)` makes: an object with any of these methods. Its attributes are kept
# in checkpoints; one with `state_dict` and `load_state_dict` says itself what is kept.
Hook = StartHook | EpochHook | ValidationHook | StepHook


def _wrong_kind(method: str, name: str, value: Any, wanted: str) -> UsageError:
    shape = getattr(value, "shape", None)
    what = kind_text(value) if shape is None else f"{kind_text(value)} of shape {tuple(shape)}"
    places = user_locations(traceback.extract_stack())
    return UsageError(
        "hook-logged-wrong-kind",
        f"`{method}({name!r}, ...)` was given {what}.",
        because=places[-1].with_code if places else None,
        fix=f"give {wanted}",
    )
