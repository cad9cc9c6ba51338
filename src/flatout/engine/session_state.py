"""All that a session needs to go on exactly where another one was."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from flatout.engine import randomness
from flatout.engine.failures import is_out_of_memory
from flatout.engine.late_buffers import buffer_forms, make_room
from flatout.engine.position import Position
from flatout.engine.session import Session
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
    # The weights themselves, where they are spread: tied ones are told by being the same.
    weights = session.model.state_dict(keep_vars=session.sharding is not None)
    return {
        "model": dict(weights),
        # Buffers kept out of the state_dict still change while training.
        "buffers": {
            name: value for name, value in session.model.named_buffers() if name not in weights
        },
        # Some are made, or grow, in the forward pass: a resume makes room for them.
        "buffer_forms": {
            "built": session.built_forms.buffers,
            "now": buffer_forms(session.model),
        },
        "optimizer": session.optimizers.state_dict(),
        "schedule": session.learning_rates.state_dict(),
        "scaler": session.scaler.state_dict() if session.scaler is not None else None,
        "average": session.average.state_dict() if session.average is not None else None,
        "generators": randomness.generator_states(session.device),
        "feed": session.feed.state(),
        "position": asdict(session.position),
    }


def take_over(session: Session, state: dict[str, Any]) -> None:
    """Gives a session a state, also that of one under another recipe, or of other ranks.

    Raises:
        UsageError: experiment-changed, where it is the state of something else.
    """
    try:
        _take_over(session, state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(
            "experiment-changed",
            "the run's checkpoint does not fit what the experiment builds now.",
            because=str(error),
            fix="go on with the experiment this run was begun with, or begin a new run from "
            "its weights with --init",
        ) from error


@torch.no_grad()
def _take_over(session: Session, state: dict[str, Any]) -> None:
    forms = state.get("buffer_forms")
    if forms is not None:
        make_room(session.model, forms["built"], forms["now"])
    if session.sharding is not None:
        parts = session.sharding.parts_of(state, _state(session), session.optimizers)
        state = state | parts
    session.model.load_state_dict(state["model"])
    buffers = dict(session.model.named_buffers())
    for name, value in state["buffers"].items():
        buffers[name].copy_(value)
    implementation = session.recipe.optimizer_implementation.value
    session.optimizers.load_state_dict(state["optimizer"], implementation)
    session.learning_rates.load_state_dict(state["schedule"])
    for part, name in ((session.scaler, "scaler"), (session.average, "average")):
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])
    session.feed.load_state(state["feed"])
    session.position = Position(**state["position"])
    # One for each rank; older checkpoints are of a single one.
    of_ranks = [state["generators"], *state.get("generators_of_others", [])]
    if session.ranks.rank < len(of_ranks):
        randomness.restore_generators(of_ranks[session.ranks.rank], session.device)
    else:
        randomness.seed_generators(session.training_seed(session.position.step))
