"""Sessions and data with one flaw each, for the gate to find; steps are in gate_flawed_step.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import get_worker_info

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate import Maker
from flatout.engine.gate.runs import begin
from flatout.engine.optim.lr_schedulers import LrSchedulers
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.runtime import rng
from flatout.engine.session.session import Session
from flatout.schema.recipe import Recipe


def flawed_session(
    spoil: Callable[[Session], Any], *, before: Callable[[Experiment], Experiment] | None = None
) -> Maker:
    """A maker of sessions that are spoiled after they are made, or their experiment is."""

    def begin_flawed(experiment: Experiment, seed: int, device: str, recipe: Recipe) -> Session:
        if before is not None:
            experiment = before(experiment)
        session = begin(experiment, seed, device, recipe)
        spoil(session)
        return session

    return Maker(begin=begin_flawed)


def as_it_is(session: Session) -> None:
    """Spoils nothing."""


def add_scaler(session: Session) -> None:
    """Gives a session a loss scaler, which a CPU's recipe never asks for."""
    session.scaler = torch.amp.GradScaler("cpu")


def with_scaler(maker: Maker) -> Maker:
    """The maker with a loss scaler in its sessions."""

    def begin_scaled(experiment: Experiment, seed: int, device: str, recipe: Recipe) -> Session:
        session = maker.begin(experiment, seed, device, recipe)
        add_scaler(session)
        return session

    return replace(maker, begin=begin_scaled)


# Flaws of the session.


def to_bf16(session: Session) -> None:
    session.model.to(torch.bfloat16)


def to_bf16_and_back(session: Session) -> None:
    """Weights that were stored in bf16."""
    for parameter in session.model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.bfloat16().to(parameter.dtype)


def untie(session: Session) -> None:
    if hasattr(session.model, "head"):
        session.model.head.weight = nn.Parameter(session.model.head.weight.detach().clone())


def untie_silently(session: Session) -> None:
    """The output's weights are a copy that is not trained."""
    if hasattr(session.model, "head"):
        copied = session.model.head.weight.detach().clone()
        del session.model.head.weight
        session.model.head.weight = copied


def recompute_wrongly(session: Session) -> None:
    """Activation checkpointing that draws different masks when it recomputes."""
    forward = session.model.forward
    session.model.forward = lambda *inputs: checkpoint(  # type: ignore[method-assign]
        forward, *inputs, use_reentrant=False, preserve_rng_state=False
    )


def recompute(session: Session) -> None:
    """Correct activation checkpointing."""
    forward = session.model.forward
    session.model.forward = lambda *inputs: checkpoint(  # type: ignore[method-assign]
        forward, *inputs, use_reentrant=False
    )


def schedule_another(session: Session) -> None:
    """The schedule changes the learning rate of an optimizer that is not used."""
    if session.experiment.schedule is not None:
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        session.learning_rates = LrSchedulers(session.experiment, Optimizers(other))


def turn_pictures(session: Session) -> None:
    """Strides of one layout with the sizes of another."""
    to_device = session.to_device

    def placed(batch: Any) -> Any:
        batch = to_device(batch) if to_device is not None else batch
        if isinstance(batch, tuple) and batch[0].dim() == 4:
            return (batch[0].transpose(2, 3), *batch[1:])
        return batch

    session.to_device = placed


def round_more(session: Session) -> None:
    """Products in bf16 although fp32 was requested."""
    for module in session.model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs: inputs[0].bfloat16().float())


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1.001


def wrong_backward(session: Session) -> None:
    """A backward pass that is wrong by one part in a thousand."""
    layers = [module for module in session.model.modules() if isinstance(module, nn.Linear)]
    if layers:
        layers[-1].register_forward_pre_hook(lambda _, inputs: _WrongBackward.apply(inputs[0]))


def approximate(session: Session) -> None:
    """tanh by a short formula, as a compiler might choose."""
    for module in session.model.modules():
        if isinstance(module, nn.Tanh):
            module.register_forward_hook(lambda _, inputs, out: out + 1e-3 * inputs[0] ** 3)


# Flaws of the data.


class FlawedFeed:
    """A feed with one flaw."""

    def __init__(self, feed: Any, flaw: str) -> None:
        self.feed, self.flaw = feed, flaw
        self.num_samples, self.updates_per_epoch = feed.num_samples, feed.updates_per_epoch

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        epoch = 0 if self.flaw == "order never changes" else epoch
        updates = list(self.feed.updates(epoch, first))
        if self.flaw == "last batch dropped":
            updates = updates[:-1]
        if self.flaw == "a batch read twice":
            updates[1] = updates[0]
        if self.flaw == "two batches exchanged":
            updates[0], updates[1] = updates[1], updates[0]
        if self.flaw == "labels shifted":
            updates = [[(_shifted(batch), size) for batch, size in part] for part in updates]
        yield from updates

    def state(self) -> Any:
        return self.feed.state()

    def load_state(self, state: Any) -> None:
        self.feed.load_state(state)

    def close(self) -> None:
        self.feed.close()


def _shifted(batch: Any) -> Any:
    if isinstance(batch, tuple) and len(batch) == 2:
        return batch[0], batch[1].roll(1)
    return batch


def flawed_feed(flaw: str) -> Maker:
    """A maker of sessions whose data has a flaw."""

    def spoil(session: Session) -> None:
        session.feed = FlawedFeed(session.feed, flaw)

    return flawed_session(spoil)


class Reseeded:
    """A data set whose samples are seeded as workers often do: all alike, or by worker."""

    def __init__(self, dataset: Any, how: str) -> None:
        self.dataset, self.how = dataset, how

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        worker = info.id if info else 0
        rng.seed_host_generators(7 if self.how == "alike" else 1000 * worker + index)
        return self.dataset[index]


def reseeded(how: str) -> Maker:
    """A maker of sessions whose samples are seeded wrongly."""

    def spoiled(experiment: Experiment) -> Experiment:
        data = experiment.train_data()
        is_map_style = hasattr(data, "__getitem__") and not isinstance(data, Tensor | tuple)
        return replace(experiment, train_data=lambda: Reseeded(data, how) if is_map_style else data)

    return flawed_session(as_it_is, before=spoiled)
