"""Compares compiled code with the same step uncompiled: same weights, same batches, same draws.

The step as it is written is judged as any other is. What is compiled is compared with that, on
batches as large as in the training: code is made for one size, so that of the training is judged.
torch traces nothing under the modes with which the gate makes draws comparable, and would silently
compute what is written; so the draws are torch's own here, which must be the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate import candidate_checks
from flatout.engine.gate.comparison import (
    curve_checks,
    gradient_errors,
    inputs_check,
    masks_check,
)
from flatout.engine.gate.fakes import remembered
from flatout.engine.gate.fixtures import GateFixtures, changed
from flatout.engine.gate.graph_replay import replays
from flatout.engine.gate.reference import Gradients, halve
from flatout.engine.gate.runs import (
    GateCase,
    drawing,
    first_updates,
    gradients_since,
    run_curve,
    running,
)
from flatout.engine.runtime import rng
from flatout.engine.session.session import Session
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Check
from flatout.tune.gate import Errors, TensorError, gradient_check

_NUM_CURVE = 3


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The gradients that a step hands to its optimizer for the same two batches, compiled or not.

    gradients: of the first batch, of the second at halved weights, of the first again with the same
    draws, and with others. inputs: the first batch after that. was_compiled: its code was run.
    """

    gradients: list[Gradients]
    inputs: list[Tensor]
    was_compiled: bool


def as_written(recipe: Recipe) -> Recipe:
    """The recipe with nothing compiled."""
    return changed(recipe, compiled="off")


def compiled_checks(small: GateFixtures, whole: GateFixtures, candidate: Recipe) -> list[Check]:
    """Whether what is compiled computes what is written.

    Args:
        small: the subject on few samples.
        whole: the same on whole batches.
        candidate: a recipe that compiles something.
    """
    compiled = candidate.compiled.value
    checks: list[Check] = []
    if candidate.capture.value == "step":
        # Whether graphs repeat the code is a question of its own, and whether they repeat what is
        # written need not be checked then.
        checks += replays(whole, candidate)
        candidate = changed(candidate, capture="off", steps_per_launch=1)
    if compiled in ("loss", "both"):
        checks += _loss_checks(small, whole, candidate)
    if compiled in ("optimizer", "both"):
        alone = changed(candidate, compiled="optimizer")
        checks += candidate_checks.optimizer(small, alone)
    return checks + _curve_checks(whole, candidate)


def _loss_checks(small: GateFixtures, whole: GateFixtures, candidate: Recipe) -> list[Check]:
    alone = changed(candidate, compiled="loss")
    compiled = _probe(_case(whole, alone, is_plain=False))
    written = _probe(_case(whole, as_written(candidate), is_plain=True))
    if not compiled.was_compiled:
        return [Check(name="compiled", is_passed=False, note="the compiled code was not run")]
    return [
        _gradients_check(small, candidate, compiled, written),
        masks_check(_draws(compiled), _draws(written)),
        inputs_check(compiled.inputs, written.inputs),
    ]


def _draws(probe: Probe) -> list[Gradients]:
    first, _, again, later = probe.gradients
    return [first, later, again]


def _gradients_check(
    small: GateFixtures, candidate: Recipe, compiled: Probe, written: Probe
) -> Check:
    """Compares gradients with the eager step's; allowed is the eager step's own error from fp64."""
    precision = candidate.precision.value
    rounding = candidate_checks.rounding_errors(small, precision)
    names = [part.name for part in rounding.parts]
    checks = []
    for gradients, written_gradients in zip(compiled.gradients, written.gradients, strict=True):
        errors = gradient_errors(names, gradients, written_gradients, written_gradients)
        parts = tuple(
            TensorError(name=part.name, error=part.error, eager=eager.eager)
            for part, eager in zip(errors.parts, rounding.parts, strict=True)
        )
        whole = Errors(
            error=errors.error, eager=rounding.error, parts=parts, is_double=rounding.is_double
        )
        checks.append(gradient_check(whole, precision, "compared with the uncompiled step"))
    return max(checks, key=lambda check: (not check.is_passed, check.measured))


def _curve_checks(whole: GateFixtures, candidate: Recipe) -> list[Check]:
    experiment = candidate_checks.averaging_soon(whole.experiment)
    compiled = run_curve(_case(whole, candidate, is_plain=False, of=experiment), _NUM_CURVE)
    written = run_curve(
        _case(whole, as_written(candidate), is_plain=True, of=experiment), _NUM_CURVE
    )
    return curve_checks(compiled, written, candidate.precision.value, lambda: written)


def _case(
    fixtures: GateFixtures, recipe: Recipe, *, is_plain: bool, of: Experiment | None = None
) -> GateCase:
    """Batches are cut as in the training, and read in this process."""
    alone: dict[str, object] = {"loader_workers": 0, "loader_persistent": False}
    if recipe.data_path.value == "cached":
        alone["data_path"] = "loader"
    if of is None:
        of, alone["clip_norm"] = fixtures.remembering, None
    return fixtures.case(of, changed(recipe, **alone), is_plain=is_plain, draws="own")


def _probe(case: GateCase) -> Probe:
    gradients: list[Gradients] = []
    with running(case) as (session, step):
        updates = first_updates(session, 2)
        first, second = updates[0], updates[-1]
        sums: Gradients = []

        def run_update(update: list[MicroBatch]) -> None:
            nonlocal sums
            step.run(update)
            before, sums = sums, remembered(session.optimizers.only)
            gradients.append(gradients_since(sums, before))

        with drawing(case, session.device):
            states = rng.generator_states(session.device)
            run_update(first)
            # What computes with the weights that it was traced with is seen now.
            halve(session.model)
            run_update(second)
            _double(session.model)
            rng.restore_generators(states, session.device)
            run_update(first)
            run_update(first)
        inputs = [
            tensor.detach().to("cpu", copy=True)
            for batch, _ in first
            for tensor in tensors_in(batch)
        ]
        return Probe(gradients=gradients, inputs=inputs, was_compiled=_was_compiled(session))


def _was_compiled(session: Session) -> bool:
    compiler = session.loss.compiler if session.loss is not None else None
    return compiler is not None and compiler.num_calls > 0


@torch.no_grad()
def _double(model: nn.Module) -> None:
    """Takes back what `halve` has done, which is exact."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.mul_(2.0)
