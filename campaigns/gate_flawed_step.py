"""A step with one flaw: typical bugs of accumulation, scaling, clipping and updating."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate import Maker
from flatout.engine.optim.fused_step import scaled_step
from flatout.engine.step.step import StepParts


class FlawedStep:
    """A step as written by hand, with one flaw; "" is none."""

    def __init__(self, parts: StepParts, flaw: str) -> None:
        self.parts = parts
        self.flaw = flaw
        self.number = 0
        self.num_samples = 0
        self.parameters = [
            p for group in parts.optimizers.only.param_groups for p in group["params"]
        ]
        self.kept: dict[str, Any] = {}

    def run(self, update: list[MicroBatch]) -> Tensor:
        parts, flaw = self.parts, self.flaw
        if flaw == "last micro-batch left out" and len(update) > 1:
            update = update[:-1]
        if flaw == "EMA before the update" and parts.average is not None:
            parts.average.update()
        buffers = [buffer.clone() for buffer in parts.model.buffers()]
        if flaw == "weights cast once":
            self._use_first_weights()
        loss = self._accumulate(update)
        if flaw == "weights cast once":
            self._use_own_weights()
        if flaw == "BatchNorm's averages frozen":
            for buffer, before in zip(parts.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        self._spoil_gradients()
        self._clip()
        self._step()
        if parts.average is not None and flaw != "EMA before the update":
            for _ in update if flaw == "EMA per micro-batch" else [None]:
                parts.average.update()
        if flaw != "gradients not set to zero":
            for parameter in self.parameters:
                parameter.grad = None
        self.number += 1
        return loss

    def _use_first_weights(self) -> None:
        """Computes with copies that were made before the first update."""
        self.kept["own"] = [parameter.data for parameter in self.parameters]
        first = self.kept.setdefault("first", [own.clone() for own in self.kept["own"]])
        for parameter, copied in zip(self.parameters, first, strict=True):
            parameter.data = copied

    def _use_own_weights(self) -> None:
        for parameter, own in zip(self.parameters, self.kept["own"], strict=True):
            parameter.data = own

    def _accumulate(self, update: list[MicroBatch]) -> Tensor:
        num_samples = self.num_samples = sum(size for _, size in update)
        total: Any = 0.0
        counts: Any = 0
        for batch, size in update:
            value, count = self._forward(batch)
            share = size / num_samples
            if count is not None and self.flaw == "mean of means":
                value, count = value / count, None
            if count is not None:
                share, counts = 1.0, counts + count
            elif self.flaw == "loss not divided":
                share = 1.0
            elif self.flaw == "parts weighed alike":
                share = 1 / len(update)
            if self.flaw == "gradients overwritten":
                for parameter in self.parameters:
                    parameter.grad = None
            value = value * share
            (self.parts.scaler.scale(value) if self.parts.scaler else value).backward()
            if self.flaw == "clipped before the batch is complete":
                self._clip()
            total = total + value.detach()
            if self.flaw == "gradients summed in bf16":
                for parameter in self.parameters:
                    if parameter.grad is not None and not parameter.grad.is_sparse:
                        parameter.grad = parameter.grad.bfloat16().to(parameter.dtype)
        if not isinstance(counts, int) or counts:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / counts
            total = total / counts
        result: Tensor = total
        return result

    def _forward(self, batch: Any) -> tuple[Tensor, Any]:
        parts, flaw = self.parts, self.flaw
        if flaw == "same masks in each step":
            torch.manual_seed(0)
        if flaw == "masks of no generator":
            torch.manual_seed(1000 + next(self.kept.setdefault("numbers", itertools.count())))
        parts.model.train(flaw != "dropout left out")
        if parts.to_device is not None:
            batch = parts.to_device(batch)
        with parts.autocast():
            result = parts.experiment.loss(parts.model, batch)
        if flaw == "forward pass made twice":
            with parts.autocast(), torch.no_grad():
                parts.experiment.loss(parts.model, batch)
        return result if isinstance(result, tuple) else (result, None)

    def _spoil_gradients(self) -> None:
        trained = [p for p in self.parameters if p.grad is not None]
        num_samples, whole = self.num_samples, self.parts.experiment.batch_size
        if self.flaw == "last batch divided by the size of a whole one" and num_samples < whole:
            for parameter in trained:
                parameter.grad = parameter.grad * (num_samples / whole)
        if self.flaw == "gradients doubled":
            for parameter in trained:
                parameter.grad = parameter.grad * 2
        if self.flaw == "a gradient is missing":
            trained[-1].grad = None
        if self.flaw == "a gradient is zero":
            trained[0].grad = torch.zeros_like(trained[0])

    def _clip(self) -> None:
        parts = self.parts
        if parts.clip_norm is None:
            return
        if parts.scaler is not None and self.flaw != "clipped before unscaling":
            parts.scaler.unscale_(parts.optimizers.only)
        if self.flaw == "each gradient clipped by itself":
            for parameter in self.parameters:
                torch.nn.utils.clip_grad_norm_([parameter], parts.clip_norm)
        elif self.flaw != "not clipped":
            torch.nn.utils.clip_grad_norm_(self.parameters, parts.clip_norm)

    def _step(self) -> None:
        parts, flaw = self.parts, self.flaw
        optimizer = parts.optimizers.only
        change = _SPOILED_GROUPS.get(flaw)
        if change is not None:
            for group in optimizer.param_groups:
                change(group)
        if flaw == "learning rate frozen":
            rates = self.kept.setdefault("rates", [g["lr"] for g in optimizer.param_groups])
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"], rate = rate, group["lr"]
                self.kept.setdefault("real", {})[id(group)] = rate
        if flaw == "last batch left out" and self.num_samples < parts.experiment.batch_size:
            return
        if parts.scaler is None or flaw == "gradients not unscaled":
            optimizer.step()
        elif flaw == "updated by what overflows":
            parts.scaler.unscale_(optimizer)
            optimizer.step()
        elif flaw == "momentum of recycled memory":
            parts.scaler.step(optimizer)
        elif flaw != "scaler's step left out":
            scaled_step(optimizer, parts.scaler)
        if flaw == "updated twice":
            optimizer.step()
        if parts.scaler is not None:
            if flaw == "gradients not unscaled":
                parts.scaler._per_optimizer_states.clear()
            elif flaw != "scaler's step left out":
                parts.scaler.update()
        if flaw == "learning rate frozen":
            for group in optimizer.param_groups:
                group["lr"] = self.kept["real"][id(group)]
        _spoil_states(optimizer, flaw)


def _spoil_states(optimizer: torch.optim.Optimizer, flaw: str) -> None:
    by_shape: dict[Any, Tensor] = {}
    for parameter, state in optimizer.state.items():
        if flaw == "step count frozen" and "step" in state:
            state["step"] = torch.ones_like(torch.as_tensor(state["step"]))
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.dim() == 0:
                continue
            if flaw == "moments in bf16":
                state[name] = value.bfloat16().to(value.dtype)
            if flaw == "moments forgotten":
                value.zero_()
            if flaw == "momentum shared":
                state[name] = by_shape.setdefault((name, parameter.shape), value)


def _set(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def spoil(group: dict[str, Any]) -> None:
        if name in group:
            group[name] = change(group[name])

    return spoil


_SPOILED_GROUPS = {
    "weight decay left out": _set("weight_decay", lambda value: 0.0),
    "weight decay in every group": _set("weight_decay", lambda value: 0.01),
    "epsilon too large": _set("eps", lambda value: 1e-6),
    "beta of another optimizer": _set("betas", lambda value: (value[0], 0.99)),
    "Nesterov left out": _set("nesterov", lambda value: False),
    "decay not decoupled": _set("decoupled_weight_decay", lambda value: False),
}


def flawed_step(flaw: str) -> Maker:
    """A maker of correct sessions, with a flawed step."""
    return Maker(step=lambda session: FlawedStep(session.step_parts(), flaw))
