"""Events and findings at the start or resume of a run: length, versions, what is not exact."""

from __future__ import annotations

import os
import platform

import torch

from flatout import __version__
from flatout.engine.ranks.protocol import RankGroup
from flatout.engine.runlog.history import History
from flatout.engine.session.session import BuiltExperiment, Session
from flatout.engine.training.loop import LoopLimits
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import Started
from flatout.schema.tuning import Load
from flatout.schema.units import counted_text
from flatout.system.clock import now_s


def started(session: Session, limits: LoopLimits, change: Change, *, resumed: bool) -> Started:
    """The event that training starts or resumes.

    Args:
        session: what is trained, where it begins.
        limits: how long.
        change: what it was taken up with.
        resumed: it continues from a checkpoint.
    """
    per_epoch = session.feed.updates_per_epoch
    num_steps = limits.steps
    if limits.epochs is not None and per_epoch is not None:
        num_steps = limits.epochs * per_epoch
    return Started(
        at=now_s(),
        step=session.position.step,
        pid=os.getpid(),
        num_steps=num_steps,
        num_epochs=limits.epochs,
        steps_per_epoch=per_epoch,
        num_parameters=sum(p.numel() for p in session.model.parameters()),
        num_trained=sum(p.numel() for p in session.model.parameters() if p.requires_grad),
        num_samples=session.feed.num_samples,
        unit=session.experiment.unit,
        resumed=resumed,
        versions=versions_here(session.device),
        num_ranks=session.ranks.size,
        on=change.on,
        python=change.python,
        leave_free_bytes=change.leave_free_bytes,
        best=session.experiment.best if session.validation_feed is not None else None,
    )


def versions_here(device: torch.device) -> dict[str, str]:
    """Versions and settings that must be equal for a bit-exact repetition."""
    versions = {
        "flatout": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        versions["gpu"] = torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
    return versions


def check_ranks(ranks: RankGroup, recipe: Recipe, built: BuiltExperiment) -> None:
    """Refuses what several ranks cannot do.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    if ranks.size == 1:
        return
    if recipe.sharding.value == "full":
        _check_spread(recipe, built)
    if recipe.exchange.value == "plain" and built.experiment.step is not None:
        raise UsageError(
            "ranks-do-not-fit",
            "`exchange=plain` cannot be combined with an experiment's own `step`.",
            because="the step makes its updates itself, and the ranks agree on each of them",
            fix="train with --use exchange=agreed",
        )
    if recipe.capture.value != "off":
        raise UsageError(
            "ranks-do-not-fit",
            f"`capture={recipe.capture.value}` cannot be combined with several ranks.",
            because="ranks signal each other when gradients are ready, which a graph cannot record",
            fix="train with --use capture=off, or without --on",
        )
    if recipe.compiled.value != "off":
        raise UsageError(
            "ranks-do-not-fit",
            f"`compiled={recipe.compiled.value}` cannot be combined with several ranks.",
            because="if one of them could not compile, the others would wait for it forever",
            fix="train with --use compiled=off, or without --on",
        )


def _check_spread(recipe: Recipe, built: BuiltExperiment) -> None:
    reasons = {
        "an experiment with its own `step`": built.experiment.step is not None,
        "`memory_format=channels_last`": recipe.memory_format.value != "contiguous",
        # A scaler and scaled products look at whole weights.
        f"`precision={recipe.precision.value}`": recipe.precision.value in ("fp16", "float8"),
    }
    for what, is_there in reasons.items():
        if is_there:
            raise UsageError(
                "ranks-do-not-fit",
                f"`sharding=full` cannot be combined with {what}.",
                because="each rank holds only a part of every weight, and this needs whole weights",
                fix="leave one of them out, or train with --use sharding=none",
            )


def are_other_ranks(ranks: RankGroup, previous: Recipe | None, history: History) -> bool:
    """Whether the processor is shared among more or fewer ranks than when the recipe was chosen."""
    if previous is None or history.versions is None or previous.num_threads.origin == "yours":
        return False
    return history.num_ranks != ranks.size


def ignored_fields_finding(fields: tuple[str, ...]) -> Finding:
    """The finding about fields of the file given with --recipe that have no effect."""
    return Finding(
        rule="recipe-of-one-process",
        severity="note",
        problem=f"{', '.join(fields)} from the recipe file are ignored; their defaults are used.",
        because="they were tuned for a single process that has the machine to itself",
        fixes=(Fix(text="set them with --use, such as --use num_threads=2 for each rank"),),
    )


def not_searched() -> Finding:
    """The finding if a run continues without the search for its recipe: it has several ranks."""
    return Finding(
        rule="search-needs-one-rank",
        severity="note",
        problem="tuning is skipped: with several ranks the run uses the defaults.",
        because="the search was interrupted before it reached a decision; it measures a single "
        "process, and ranks would disturb each other",
        fixes=(Fix(text="resume the run without --on first, and stop it once training starts"),),
    )


def busy_cpus_finding(recipe: Recipe, load: Load | None) -> list[Finding]:
    """The finding if other programs use the CPUs that the recipe's threads need.

    Args:
        recipe: of the run.
        load: of the machine by other programs; None where it is not known.
    """
    num_threads = recipe.num_threads
    is_yours = num_threads.origin == "yours"
    if load is None or not load.is_busy or recipe.device.value != "cpu" or is_yours:
        return []
    num_free = max(1, int(load.num_cpus - load.other_cpus))
    if num_threads.value <= num_free:
        return []
    return [
        Finding(
            rule="cpus-in-use",
            severity="note",
            problem=f"other programs use {load.text}; this run has "
            f"{counted_text(num_threads.value, 'thread')}.",
            because="the threads of an operation wait for the one that lost its CPU, which can "
            "make it many times slower",
            fixes=(Fix(text=f"use fewer threads while they run: --use num_threads={num_free}"),),
        )
    ]


def of_ranks(session: Session, history: History) -> list[Finding]:
    """Findings about a run's ranks, before they matter.

    Args:
        session: what is trained by them.
        history: of the run.
    """
    now, before = session.ranks.size, history.num_ranks
    findings = []
    if history.versions is not None and now != before:
        findings.append(
            Finding(
                rule="other-number-of-ranks",
                severity="note",
                problem=f"the run continues with {counted_text(now, 'rank')} instead of {before}: "
                "every batch has the same samples in the same order.",
                because="sums are grouped differently and may differ in the last digits; dropout "
                "draws different numbers",
                fixes=(Fix(text=f"for an exact resume, use the same number of ranks: {before}"),),
            )
        )
    if history.versions is None:
        findings += _without_effect(session)
        findings += _built_whole(session)
    is_per_rank = session.recipe.batch_norm.value == "per-rank"
    if now > 1 and session.facts.has_batch_norm and is_per_rank:
        findings.append(
            Finding(
                rule="batch-norm-per-rank",
                severity="note",
                problem="BatchNorm sees each rank's share of a batch, as if it were a micro-batch.",
                because="its running statistics are averaged over the ranks after every step",
                fixes=(
                    Fix(text="let it see the whole batch: --use batch_norm=synchronized"),
                    Fix(
                        text="use a large enough batch per rank; or GroupNorm, which normalizes "
                        "each sample by itself"
                    ),
                ),
            )
        )
    return findings


def _built_whole(session: Session) -> list[Finding]:
    """The finding if ranks had to build the whole model before they kept their parts of it."""
    whys = session.sharding.whys_whole if session.sharding is not None else []
    reasons = [f"rank {rank}: {why}" for rank, why in enumerate(whys) if why is not None]
    if not reasons:
        return []
    return [
        Finding(
            rule="model-built-whole",
            severity="note",
            problem="each rank has built the whole model in the computer's memory.",
            because="; ".join(reasons),
            fixes=(
                Fix(
                    text="nothing, if memory allows it; otherwise let `model` not read tensor "
                    "values, and keep tensors only as parameters or buffers"
                ),
            ),
        )
    ]


def _without_effect(session: Session) -> list[Finding]:
    """Settings for several ranks that change nothing here."""
    recipe, alone = session.recipe, "a single rank has the whole model and the whole batch"
    is_alone = session.ranks.size == 1
    reasons: dict[str, str] = {}
    if recipe.sharding.value == "full" and is_alone:
        reasons["sharding"] = alone
    if recipe.batch_norm.value == "synchronized" and is_alone:
        reasons["batch_norm"] = alone
    elif recipe.batch_norm.value == "synchronized" and not session.facts.has_batch_norm:
        reasons["batch_norm"] = "the model has no BatchNorm"
    if recipe.exchange.value == "plain" and is_alone:
        reasons["exchange"] = "a single rank has no gradients to exchange"
    return [
        Finding(
            rule="setting-without-effect",
            severity="warning",
            problem=f"`{name}` has no effect here.",
            because=because,
            fixes=(Fix(text=f"leave --use {name} out"),),
        )
        for name, because in reasons.items()
    ]


def inexact(session: Session, before: dict[str, str] | None) -> list[Finding]:
    """Findings about an inexact resume, before it matters.

    Args:
        session: what is resumed.
        before: the versions it has used until now; None for a new run.
    """
    findings, versions = [], versions_here(session.device)
    different = [
        f"{name} {before.get(name)} before, {version} now"
        for name, version in versions.items()
        if before is not None and before.get(name) != version
    ]
    if different:
        findings.append(
            Finding(
                rule="other-versions",
                severity="warning",
                problem="the run resumes with different versions; results may differ.",
                because="; ".join(different),
                fixes=(Fix(text="for a bit-exact resume, use the versions it was started with"),),
            )
        )
    if session.facts.data_kind == "iterable" and not getattr(session.feed, "has_state", False):
        findings.append(
            Finding(
                rule="iterable-is-replayed",
                severity="note",
                problem="a resume reads the training data from the start of the epoch again.",
                because="the iterable has no state_dict, or one without its shuffle buffer, or "
                "is read by workers; the resume is exact only if it yields the same samples again",
                fixes=(
                    Fix(text="implement state_dict and load_state_dict, and set loader_workers=0"),
                ),
            )
        )
    return findings
