"""Reasons against compiling a step, found before anything is compiled."""

from __future__ import annotations

from flatout.engine.recipe.experiment_facts import ExperimentFacts
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.errors import UsageError
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import Recipe

_UNUSED_MODE = Finding(
    rule="setting-without-effect",
    severity="warning",
    problem="`compile_mode` has no effect here.",
    because="nothing is compiled",
    fixes=(Fix(text="leave --use compile_mode out, or set compiled"),),
)


def compiling_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    """Settings of the compiler that do nothing, or keep a run from repeating bit for bit.

    Raises:
        UsageError: recipe-does-not-fit, where nothing can be compiled.
    """
    compiled, mode = recipe.compiled.value, recipe.compile_mode.value
    if compiled == "off":
        is_requested = recipe.compile_mode.origin == "yours" and mode != "default"
        return [_UNUSED_MODE] if is_requested else []
    reason, fix = why_not_compiled(facts.device), "leave it out, or use off"
    if facts.has_own_step:
        reason = "the experiment's own step makes its updates itself, with arbitrary calls"
    if recipe.capture.value == "step" and compiled != "loss":
        reason = "with `capture=step` the optimizer is in the graph: only `loss` can be compiled"
        fix = "use compiled=loss, or capture=off"
    if compiled in ("optimizer", "both") and recipe.precision.value == "fp16":
        reason = "with fp16 the loss scaler makes the optimizer's step"
    if reason is not None:
        raise UsageError(
            "recipe-does-not-fit",
            f"`compiled={compiled}` is not supported here.",
            because=reason,
            fix=fix,
        )
    if mode == "default" or not recipe.deterministic.value:
        return []
    return [
        Finding(
            rule="compiled-otherwise-each-time",
            severity="warning",
            problem=f"`compile_mode={mode}` may generate different code in another process.",
            because="it depends on timings, or on the shapes that come first; so a resumed run may "
            "differ in the last bits",
            fixes=(Fix(text="use compile_mode=default, or deterministic=false"),),
        )
    ]
