"""Whole updates in CUDA graphs: what speaks against them, and which are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flatout.schema.tuning import Candidate, Profile, Setting
from flatout.schema.units import percent_text

AXIS = "capture"

# A graph of several updates is launched as one; inputs of all of them are kept on the device.
STEPS = (1, 8)

# Where the host is busy for less of a step than this, the device never waits for it.
LEAST_HOST_SHARE = 0.3

# Here the launches are what a step consists of: no other gain shows before that is fixed.
LAUNCH_BOUND = 0.7


def why_not_captured(
    device: str, forms: Sequence[str], not_captured: str | None, recipe: Mapping[str, Any]
) -> str | None:
    """The reason against capturing the step of a recipe; None if there is none.

    What only a recording can tell is not known here.

    Args:
        device: `cpu` or `cuda`.
        forms: implementations of the optimizer whose whole update is the device's work.
        not_captured: what of the experiment keeps its steps out of graphs, if anything does.
        recipe: its fields, as far as they are known.
    """
    implementation = recipe.get("optimizer_implementation", "own")
    if device != "cuda":
        return "the step runs on the CPU, which has no CUDA graphs"
    if not_captured is not None:
        return not_captured
    if not forms:
        return "the optimizer's update involves the CPU"
    if recipe.get("nonfinite_loss") == "skip":
        return "with nonfinite_loss=skip, each step waits for its loss"
    if recipe.get("activation_checkpointing"):
        return (
            "torch cannot capture activation checkpointing: it reads the state of the random "
            "generator"
        )
    if implementation not in forms:
        return f"this optimizer can be captured as {' or '.join(forms)}, not as {implementation}"
    if recipe.get("precision") == "fp16" and implementation != "fused":
        return "with fp16, only a fused optimizer decides on the GPU whether to skip a step"
    return None


def captures(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    """Graphs of one update and of several, each with why it is not tried."""
    for num_steps in STEPS:
        changes, reason = in_graphs(setting, num_steps)
        yield (
            Candidate(
                name="step in a CUDA graph"
                if num_steps == 1
                else f"CUDA graph of {num_steps} steps",
                axis=AXIS,
                changes=changes,
                why="the GPU need not wait for Python and single kernel launches",
                is_process_wide=True,
            ),
            reason or why_no_gain(profile, num_steps, LEAST_HOST_SHARE),
        )


def in_graphs(setting: Setting, num_steps: int) -> tuple[dict[str, Any], str | None]:
    """The recipe fields of so many steps in a graph, and why they cannot be, if they cannot."""
    forms = setting.forms_to_capture
    known = {**setting.defaults, **setting.baseline, **setting.fixed}
    is_there = known.get("optimizer_implementation", "own") in forms
    form: dict[str, Any] = {}
    if forms and not is_there and "optimizer_implementation" not in setting.fixed:
        # Without a form as it is, another one comes along.
        form["optimizer_implementation"] = "fused" if "fused" in forms else forms[0]
    reason = why_not_captured(setting.device, forms, setting.not_captured, {**known, **form})
    return {"capture": "step", "steps_per_launch": num_steps, **form}, reason


def why_no_gain(profile: Profile, num_steps: int, least_share: float) -> str | None:
    """The reason why graphs of so many steps would gain nothing, by the host's share of a step."""
    share = profile.host_share
    if share is None:
        return None
    if share < least_share:
        return f"the step is not launch-bound (host share {percent_text(share)})"
    if num_steps > 1 and share < LAUNCH_BOUND:
        return "launching each step separately takes little of its time"
    return None
