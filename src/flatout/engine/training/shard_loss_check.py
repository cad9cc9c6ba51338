"""Checked once before ranks train: is the loss of their shares of a batch the loss of the batch?

It is not where samples are compared with each other (CLIP, SimCLR). Ranks train all the same, as
with DDP, but the user should know.
"""

from __future__ import annotations

import torch

from flatout.engine.gate.batch_splitting import UNCHECKED, Training, why_not_split
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import RankGroup
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime.gpu_memory import free_bytes
from flatout.engine.session.session import BuiltExperiment
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import SharesChecked
from flatout.schema.units import bytes_text
from flatout.system.clock import now_s

# The model, its copy, the same in fp64, and its gradients there.
_COPIES = 6
# Of what is free in the computer's memory.
_SHARE = 0.5
_CPU = torch.device("cpu")
# The other ranks wait for the result, at a meeting with a limit.
_MOST_S, _OF_LIMIT = 60.0, 0.25


def split_check_limit_s(ranks: RankGroup) -> float | None:
    """Time for the first rank to check whether a batch can be split; None if nothing waits."""
    if not isinstance(ranks, MultiRank):
        return None
    return min(_MOST_S, _OF_LIMIT * ranks.connection.rank_env.limit_s)


def check_shares(
    built: BuiltExperiment,
    recipe: Recipe,
    event_log: EventLog,
    step: int,
    limit_s: float | None = None,
) -> None:
    """Checks whether shares compute the same, unless the history has the result; logs it there.

    Args:
        built: the experiment. recipe: with which it is trained.
        event_log: of the run.
        step: the newest one.
        limit_s: about how long it may take; None as long as it does.
    """
    experiment, history = built.experiment, event_log.history
    # A step of its own says itself what is a mean over the samples of a share.
    if history.shares is not None or experiment.loss is None or built.facts.batch_size < 2:
        return
    # Where the process ends during the check, the next one does not repeat it.
    begun = f"{UNCHECKED}: a process exited before the check was done"
    unchecked = SharesChecked(at=now_s(), step=step, reason=begun, is_checked=False)
    event_log.event(unchecked, is_synced=True)
    reason = _why_not(built, recipe, limit_s)
    is_checked = reason is None or not reason.startswith(UNCHECKED)
    line = SharesChecked(at=now_s(), step=step, reason=reason, is_checked=is_checked)
    event_log.event(line, is_synced=True)
    if reason is not None:
        event_log.warn(step, _finding(reason, is_checked=is_checked))


def _why_not(built: BuiltExperiment, recipe: Recipe, limit_s: float | None) -> str | None:
    num_bytes = sum(
        parameter.numel() * parameter.element_size() for parameter in built.model.parameters()
    )
    needed, free = _COPIES * num_bytes, free_bytes(_CPU)
    if needed > _SHARE * free:
        return (
            f"{UNCHECKED}: this takes {bytes_text(needed)} of the computer's memory, and "
            f"{bytes_text(free)} is free"
        )
    training = Training(
        experiment=built.experiment,
        seed=built.seed,
        device=built.device,
        data=built.train_data,
        # Whether BatchNorm sees a share or the batch is a question of its own.
        are_norms_fixed=True,
        num_parameters=built.facts.num_parameters,
        limit_s=limit_s,
        # What the GPU has no memory for takes a CPU far too long.
        has_second_try=False,
    )
    return why_not_split(training, recipe)


def _finding(reason: str, *, is_checked: bool) -> Finding:
    if not is_checked:
        return Finding(
            rule="loss-over-shares",
            severity="note",
            problem="cannot tell whether the ranks together compute the loss of the whole batch.",
            because=reason,
            fixes=(
                Fix(text="nothing, if `loss` is a mean over samples, or a sum and its count"),
                Fix(text="otherwise train on one rank, without --on"),
            ),
        )
    return Finding(
        rule="loss-over-shares",
        severity="warning",
        problem="each rank computes the loss over its share of a batch, and that is not the loss "
        "of the whole batch.",
        because=reason,
        fixes=(
            Fix(text="train on one rank, without --on, to compare all samples of a batch"),
            Fix(
                text="return (loss.sum(), count) if the loss is a mean over something other than "
                "samples"
            ),
            Fix(text="nothing, if a loss over each share is intended, as DDP computes it"),
        ),
    )
