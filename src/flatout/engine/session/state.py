"""All that a session needs to resume exactly where another one was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.model.ema import WeightAverage
from flatout.engine.model.late_buffers import buffer_forms, make_room
from flatout.engine.progress import TrainState
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.session.session import Session
from flatout.engine.tensors.state_tree import LARGE_PARTS, compact, copied, is_expanded
from flatout.errors import UsageError


def state_of(session: Session, *, is_for_all: bool = False) -> dict[str, Any]:
    """A session's state; tensors are live ones.

    Of a model that is spread over the ranks: copies of whole ones, for the first rank or for all of
    them, who call it together.
    """
    state = _state(session)
    if session.sharding is None:
        return state
    whole: dict[str, Any] = session.sharding.whole(state, is_for_all=is_for_all)
    return whole


def own_state_of(session: Session) -> dict[str, Any]:
    """The same with what this rank holds of it: to learn whether it can be stored."""
    state = _state(session)
    own: dict[str, Any] = state if session.sharding is None else session.sharding.own(state)
    return own


def _state(session: Session) -> dict[str, Any]:
    # The weights themselves, where they are spread: tied ones are identical objects.
    weights = session.model.state_dict(keep_vars=session.sharding is not None)
    return {
        "model": dict(weights),
        # Buffers kept out of the state_dict still change while training.
        "buffers": {
            name: value for name, value in session.model.named_buffers() if name not in weights
        },
        "attributes": session.attributes.state(),
        # Some are made, or grow, in the forward pass: a resume makes room for them.
        "buffer_forms": {
            "built": session.built_forms.buffers,
            "now": buffer_forms(session.model),
        },
        "optimizer": session.optimizers.state_dict(),
        "optimizer_attributes": session.optimizer_attributes.state(),
        "schedule": session.learning_rates.state_dict(),
        "schedule_steps": session.learning_rates.total_steps,
        "scaler": session.scaler.state_dict() if session.scaler is not None else None,
        "average": session.average.state_dict() if session.average is not None else None,
        "generators": rng.generator_states(session.device),
        "feed": session.feed.state(),
        "hooks": session.hooks.state(),
        "position": asdict(session.position),
        "file": session.file,
    }


def take_over(session: Session, state: dict[str, Any], *, is_changed: bool = False) -> None:
    """Gives a session a state, also that of one under another recipe, or of other ranks.

    Args:
        session: built, and not trained yet.
        state: what it takes over.
        is_changed: it is built from another text of the experiment's file: settings of the
            optimizer and the schedule are that text's.

    Raises:
        UsageError: experiment-changed, where it is the state of something else.
    """
    try:
        _take_over(session, state, is_changed)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(
            "experiment-changed",
            "the run's checkpoint does not fit the model or optimizer that the experiment builds "
            "now.",
            because=str(error),
            fix="restore the experiment this run was started with, or start a new run",
        ) from error


def forget_tensors(state: dict[str, Any]) -> None:
    """Leaves out of a state that was taken over what is as large as the model."""
    for name in (*LARGE_PARTS, "buffers", "attributes"):
        state.pop(name, None)


@contextlib.contextmanager
def _expanded_buffers_as_dense(model: nn.Module, weights: dict[str, Any]) -> Iterator[None]:
    """Lets the expanded buffers of a state be loaded: nothing can be copied into them, since each
    element of their memory stands for several.
    """
    expanded = [
        (module._buffers, name, buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and is_expanded(buffer)
        if (f"{prefix}.{name}" if prefix else name) in weights
    ]
    for buffers, name, buffer in expanded:
        buffers[name] = buffer.contiguous()
    yield
    for buffers, name, buffer in expanded:
        loaded = buffers[name]
        assert loaded is not None
        compact(buffer).copy_(compact(loaded.as_strided(buffer.shape, _strides(loaded, buffer))))
        buffers[name] = buffer


def _strides(dense: Tensor, like: Tensor) -> list[int]:
    """Strides of a dense tensor, but 0 where another tensor repeats its elements."""
    pairs = zip(dense.stride(), like.stride(), strict=True)
    return [stride if other else 0 for stride, other in pairs]


@torch.no_grad()
def _take_over(session: Session, state: dict[str, Any], is_changed: bool) -> None:
    forms = state.get("buffer_forms")
    if forms is not None:
        make_room(session.model, forms["built"], forms["now"])
    if session.sharding is not None:
        parts = session.sharding.parts_of(state, _state(session), session.optimizers)
        state = state | parts
    elif session.ranks.size > 1:
        # An optimizer keeps the tensors it is given; these may be those of a file.
        state = state | {"optimizer": copied(state["optimizer"])}
    with _expanded_buffers_as_dense(session.model, state["model"]):
        session.model.load_state_dict(state["model"])
    buffers = dict(session.model.named_buffers())
    for name, value in state["buffers"].items():
        if not is_changed or name in buffers:
            compact(buffers[name]).copy_(compact(value))
    # Older checkpoints do not have them.
    if "attributes" in state:
        session.attributes.load_state(state["attributes"])
    implementation = session.recipe.optimizer_implementation.value
    session.optimizers.load_state_dict(state["optimizer"], implementation)
    session.optimizer_attributes.load_state(state.get("optimizer_attributes", {}))
    _take_over_schedule(session, state, is_changed)
    for part, name in ((session.scaler, "scaler"), (session.average, "average")):
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])
    session.feed.load_state(state["feed"])
    if session.average is not None and state["average"] is None:
        # A changed file may have added it: it begins with the weights as they are now.
        session.average = WeightAverage(session.model, session.average.decay)
    session.position = TrainState(**state["position"])
    if is_changed and session.position.best_name != session.experiment.best:
        # What was the best by another metric says nothing.
        session.position = replace(
            session.position, best_value=None, best_loss=None, best_name=None, num_worse=0
        )
    # One for each rank; older checkpoints are of a single one.
    of_ranks = [state["generators"], *state.get("generators_of_others", [])]
    if session.ranks.rank < len(of_ranks):
        rng.restore_generators(of_ranks[session.ranks.rank], session.device)
    else:
        rng.seed_generators(session.training_seed(session.position.step))


def _take_over_schedule(session: Session, state: dict[str, Any], is_changed: bool) -> None:
    """Loads the schedules' states; where they are built otherwise now, for another length or by
    another file, puts them where they would be by now.
    """
    rates, position = session.learning_rates, TrainState(**state["position"])
    length = state.get("schedule_steps", rates.total_steps)
    is_stretched = rates.know_length and length != rates.total_steps
    if is_changed or is_stretched:
        num_made = position.step if rates.are_per_step else position.epoch
        rates.go_to(num_made, state["schedule"])
    else:
        rates.load_state_dict(state["schedule"])
