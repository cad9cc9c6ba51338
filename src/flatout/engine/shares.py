"""Asked once before ranks train: is the loss of their shares of a batch the loss of the batch?

It is not where samples are compared with each other (CLIP, SimCLR). Ranks train all the same, as
with DDP, but a person should know.
"""

from __future__ import annotations

import torch

from flatout.engine.gate.splitting import UNCHECKED, Training, why_not_split
from flatout.engine.history import read_history
from flatout.engine.journal import Journal
from flatout.engine.memory import free_bytes
from flatout.engine.session import Built
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.lines import SharesChecked
from flatout.nouns.recipe import Recipe
from flatout.nouns.units import bytes_text
from flatout.system.clock import now_s
from flatout.system.runs import RunFolder

# The model, its copy, the same in fp64, and its gradients there.
_COPIES = 6
# Of what is free in the computer's memory.
_SHARE = 0.5
_CPU = torch.device("cpu")


def check_shares(
    built: Built, recipe: Recipe, journal: Journal, folder: RunFolder, step: int
) -> None:
    """Looks whether shares compute the same, unless the run has it in its history; tells it there.

    Args:
        built: the experiment. recipe: with which it is trained.
        journal: of the run. folder: of the run.
        step: the newest one.
    """
    experiment, history = built.experiment, read_history(folder)
    # A step of its own says itself what is a mean over the samples of a share.
    if history.shares is not None or experiment.loss is None or built.facts.batch_size < 2:
        return
    reason = _why_not(built, recipe)
    is_checked = reason is None or not reason.startswith(UNCHECKED)
    line = SharesChecked(at=now_s(), step=step, reason=reason, is_checked=is_checked)
    journal.event(line, is_synced=True)
    if reason is not None:
        journal.warn(step, _finding(reason, is_checked=is_checked))


def _why_not(built: Built, recipe: Recipe) -> str | None:
    num_bytes = sum(one.numel() * one.element_size() for one in built.model.parameters())
    needed, free = _COPIES * num_bytes, free_bytes(_CPU)
    if needed > _SHARE * free:
        return (
            f"{UNCHECKED}: that takes {bytes_text(needed)} of the computer's memory, and "
            f"{bytes_text(free)} are free"
        )
    training = Training(
        experiment=built.experiment,
        seed=built.seed,
        device=built.device,
        data=built.train_data,
        # Whether BatchNorm sees a share or the batch is a question of its own.
        are_norms_fixed=True,
    )
    return why_not_split(training, recipe)


def _finding(reason: str, *, is_checked: bool) -> Finding:
    if not is_checked:
        return Finding(
            rule="loss-over-shares",
            severity="note",
            problem="whether the ranks together compute the loss of the whole batch is not known.",
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
            Fix(text="return (loss.sum(), count) if it is a mean over something else than samples"),
            Fix(text="nothing, if a loss over each share is meant, as DDP computes it"),
        ),
    )
