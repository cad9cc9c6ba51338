"""Runs hooks between updates: on every rank, with what they log kept by the first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from flatout.engine.hooks import HookContext, HookEntry
from flatout.engine.model.ema import WeightAverage
from flatout.engine.model.module_attributes import version_of
from flatout.engine.ranks.gradient_buffers import are_same
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.session.session import Session
from flatout.engine.session.validation import shortened
from flatout.engine.tensors.png_file import png_of
from flatout.errors import UsageError
from flatout.schema.run_lines import Logged
from flatout.system import atomic_files
from flatout.system.clock import now_s
from flatout.system.store.run_folder import RunFolder

# Makes again what a step has recorded or compiled; given whether other weights may be trained now.
Renew = Callable[[bool], None]


class HookRounds:
    """Calls a session's hooks, and says what follows for the training.

    are_there: whether there are hooks. are_per_step: whether one has `on_step`.

    Args:
        session: what is trained.
        event_log: where what they log is written.
        folder: where pictures are kept.
    """

    def __init__(self, session: Session, event_log: EventLog, folder: RunFolder) -> None:
        self._session = session
        self._hooks = session.hooks
        self._event_log = event_log
        self._folder = folder
        self._weights: list[Tensor] = list(session.model.parameters())
        self._entries: list[HookEntry] = []
        self._is_rebuild_due = False
        # Attributes: a training without hooks pays no more for them.
        self.are_there = bool(session.hooks.by_name)
        self.are_per_step = session.hooks.has("on_step")

    def start(self) -> None:
        """Calls `on_start`; what it logs waits for `write`."""
        session = self._session
        if session.validation_feed is None:
            self._hooks.check_validated()
        if self.are_per_step and session.recipe.capture.value != "off":
            # Of a run that is resumed with another file.
            raise UsageError(
                "recipe-does-not-fit",
                "the run's steps are made in CUDA graphs, and a hook of the experiment has "
                "`on_step`.",
                because="it runs after every step, and may change what a graph holds",
                fix="resume with --use capture=off",
            )
        if self._hooks.has("on_start"):
            self._round("on_start")
            if session.average is not None and session.position.step == 0:
                # It begins with the weights that are trained.
                session.average = WeightAverage(session.model, session.average.decay)
            # Steps are made after it.
            self._is_rebuild_due = False
        self._hooks.check()

    def after_step(self, loss: Tensor | Mapping[str, Tensor], renew: Renew) -> None:
        """Calls `on_step`."""
        is_refrozen = self._round("on_step", loss)
        self.write()
        if is_refrozen:
            renew(True)

    def after_validation(self, metrics: dict[str, float] | None, renew: Renew) -> None:
        """Calls `on_validation`; metrics: of a validation just now, None where there was none."""
        if metrics is not None:
            self._hooks.metrics = metrics
            self._boundary("on_validation", renew)

    def after_epoch(self, renew: Renew) -> None:
        """Calls `on_epoch`."""
        self._boundary("on_epoch", renew)

    def ending(self) -> Literal["early", "recipe"] | None:
        """Whether they end the training, or need all of it built again: what was compiled, or
        spread over ranks, is for the weights that were trained so far.
        """
        if self._session.position.stop_reason is not None:
            return "early"
        return "recipe" if self._is_rebuild_due else None

    def write(self) -> None:
        """Writes what they have logged."""
        entries, self._entries = self._entries, []
        if not self._session.ranks.is_first:
            return
        for entry in entries:
            self._event_log.metric(self._line(entry))

    def _boundary(self, call: str, renew: Renew) -> None:
        if self._hooks.has(call):
            is_refrozen = self._round(call)
            self.write()
            self._hooks.check()
            renew(is_refrozen)

    def _round(self, call: str, loss: Tensor | Mapping[str, Tensor] | None = None) -> bool:
        """Calls hooks; gives whether they have changed what steps are built for."""
        session, position = self._session, self._session.position
        context = HookContext(
            model=session.model,
            optimizer=session.optimizers.given,
            step=position.step,
            epoch=position.epoch,
            metrics=dict(self._hooks.metrics),
            loss=loss,
        )
        before, versions = _settings(session), _versions(session)
        with torch.no_grad():
            self._hooks.call(call, context)
        # A resume does not know of another mode either.
        session.model.train()
        session.check_groups()
        # What is spread over ranks has other tensors after each pass through the model.
        if session.sharding is None and not are_same(
            self._weights, list(session.model.parameters())
        ):
            raise _replaced(call)
        after, reason = _settings(session), context.stop_reason
        if session.ranks.size > 1:
            own: list[Any] = [after, reason, _versions(session) != versions]
            outcomes = session.ranks.all_gather(own, about="hooks")
            if len({settings for settings, *_ in outcomes}) > 1:
                raise _differ(call)
            reason = next((reason for _, reason, _ in outcomes if reason is not None), None)
            if any(has_changed for *_, has_changed in outcomes):
                # Each rank draws other random numbers, also to reset a layer.
                session.ranks.copy_from_first(session.model)
        position.stop_reason = position.stop_reason or reason
        self._entries += context.logged
        if after == before:
            return False
        position.refrozen_step = position.step
        # What is compiled or recorded is for the weights that were trained, and so are parts of a
        # model on several ranks.
        recipe = session.recipe
        is_plain = recipe.compiled.value == recipe.capture.value == "off"
        self._is_rebuild_due |= not is_plain or session.sharding is not None
        return True

    def _line(self, entry: HookEntry) -> Logged:
        position, file = self._session.position, None
        if entry.picture is not None:
            path = self._folder.pictures / f"{_safe(entry.name)}-{position.step:06d}.png"
            with atomic_files.mapped_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_atomically(path, png_of(entry.picture))
            file = path.relative_to(self._folder.path).as_posix()
        return Logged(
            at=now_s(),
            step=position.step,
            epoch=position.epoch,
            name=shortened(entry.name),
            value=entry.number,
            text=shortened(entry.text) if entry.text is not None else None,
            picture=file,
        )


def _settings(session: Session) -> str:
    """What steps were built for, and hooks may change: frozen weights, settings of optimizers.

    Learning rates are not among it: every step reads them.
    """
    trained = [parameter.requires_grad for parameter in session.model.parameters()]
    groups: list[Any] = [
        {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}
        for optimizer in session.optimizers
        for group in optimizer.param_groups
    ]
    return hashlib.sha256(repr((trained, groups)).encode()).hexdigest()


def _versions(session: Session) -> list[int]:
    """How often each weight and buffer was changed in place; only several ranks ask."""
    if session.ranks.size == 1:
        return []
    tensors = (*session.model.parameters(), *session.model.buffers())
    return [version_of(tensor) for tensor in tensors]


def _safe(name: str) -> str:
    """A file's name that every file system can hold, another one for every name."""
    safe = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:60]
    if safe == name:
        return safe
    return f"{safe or 'picture'}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _replaced(call: str) -> UsageError:
    return UsageError(
        "hook-replaced-weights",
        f"`{call}` has put other weights into the model, or taken some out.",
        because="the optimizer trains those that were there when it was built",
        fix="change weights in place: weight.copy_(values), layer.reset_parameters()",
    )


def _differ(call: str) -> UsageError:
    return UsageError(
        "hooks-differ",
        f"`{call}` has left other weights frozen, or other settings of the optimizer, on one rank "
        "than on another.",
        because="all ranks must train the same weights",
        fix="decide from the context alone, not from the rank, the clock or files",
    )
