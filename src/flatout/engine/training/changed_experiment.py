"""A run that resumes with another text of its experiment file: what fits of its state, and the
file in its folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flatout.engine.optim.optimizers import ONLY
from flatout.engine.optim.schedule_rehearsal import OF_THE_RECIPE
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runlog.history import History
from flatout.engine.session.load_experiment import experiment_changed
from flatout.engine.session.session import Session
from flatout.errors import UsageError
from flatout.schema.change import Change, ChangedFile, diff_of
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding, Fix
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import FileChanged
from flatout.schema.suggested_command import train_command
from flatout.system import atomic_files
from flatout.system.clock import now_s
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.source_files import content

_MOST_LISTED = 4


def check_fit(
    session: Session, state: Mapping[str, Any], folder: RunFolder, change: Change
) -> None:
    """Refuses a state that what the changed file builds cannot take over.

    Raises:
        UsageError: state-does-not-fit.
    """
    spec = atomic_files.read_json(folder.header, RunHeader).spec
    own = session.model.state_dict()
    problems = list(_misfits(state["model"], own))
    if problems:
        because = "; ".join(problems[:_MOST_LISTED]) + (
            " ..." if len(problems) > _MOST_LISTED else ""
        )
        raise _does_not_fit(folder, "model", because, train_command(spec, change))
    problem = _optimizer_misfit(session, state["optimizer"])
    if problem is not None:
        begun = train_command(msgspec.structs.replace(spec, init=folder.typed), change)
        raise _does_not_fit(folder, "optimizer", problem, begun)


def has_other_file(state: Mapping[str, Any], spec: ExperimentSpec, change: Change) -> bool:
    """Whether a checkpoint was made with another text of the file than the run resumes with."""
    if "file" not in state:  # It is of an older flatout.
        return change.file is not None
    return bool(state["file"] != spec.sha256)


def fits_of(session: Session) -> tuple[str, ...]:
    """The parts of a run's state that were taken over, in words; nothing where it begins."""
    if session.position.step == 0:
        return ()
    position, rates = session.position, session.learning_rates
    num_tensors = len(session.model.state_dict())
    parts = [f"all {num_tensors} tensors of the model", "the optimizer's state"]
    if session.experiment.schedule is not None:
        schedule_position = (
            f"update {position.step:,}" if rates.are_per_step else f"epoch {position.epoch}"
        )
        parts.append(f"the file's own schedule, at {schedule_position}")
    return (*parts, f"the position: step {position.step:,}, epoch {position.epoch + 1}")


def read_text(spec: ExperimentSpec, change: Change) -> bytes | None:
    """The text that a run resumes with, as it is before the experiment is built from it.

    That may take long, and the file may be edited in the meantime. None where the run keeps its
    text.
    """
    if change.file is None or spec.file is None:
        return None
    return content(Path(spec.file))


def adopt(
    folder: RunFolder,
    event_log: EventLog,
    text: bytes,
    sha256: str,
    step: int,
    fits: tuple[str, ...],
) -> None:
    """Makes the changed text of its file the run's own; the text before stays in its folder.

    Safe to interrupt: the old text is kept first, and the run's header is written last.

    Raises:
        UsageError: experiment-changed, where the text is not the one of that sha256.
    """
    header = atomic_files.read_json(folder.header, RunHeader)
    assert header.spec.file is not None, "a built-in has no file to change"
    if hashlib.sha256(text).hexdigest() != sha256:
        raise experiment_changed(Path(header.spec.file))
    before, kept, old = header.spec.sha256, None, b""
    if before is not None and folder.experiment.is_file():
        kept = folder.experiment_before(before)
        if not kept.exists():
            atomic_files.copy_atomically(folder.experiment, kept)
        old = content(kept)
    atomic_files.write_atomically(folder.experiment, text)
    new_text, old_text = (raw.decode("utf-8-sig", errors="replace") for raw in (text, old))
    event_log.event(
        FileChanged(
            at=now_s(),
            step=step,
            before=before,
            after=sha256,
            kept=kept.name if kept is not None else None,
            diff=diff_of(old_text, new_text, (str(folder.experiment), header.spec.file)),
            fits=fits,
        ),
        is_synced=True,
    )
    spec = msgspec.structs.replace(header.spec, sha256=sha256)
    atomic_files.write_json(folder.header, msgspec.structs.replace(header, spec=spec))


def other_data(session: Session, history: History) -> Finding | None:
    """The finding if the training data has another size than before."""
    now, before = session.feed.num_samples, history.num_samples
    if now == before or before is None:
        return None
    unit = session.experiment.unit
    return Finding(
        rule="other-data",
        severity="warning",
        problem=f"the training data has {now if now is not None else 'an unknown number of'} "
        f"{unit}; before, it had {before}.",
        because="the order of an epoch depends on this number: in this epoch some are seen "
        "twice, others not at all",
        fixes=(Fix(text="start a new run if that matters"),),
    )


def _misfits(saved: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    for name, value in own.items():
        if name not in saved:
            yield f"{name} is new"
        elif saved[name].shape != value.shape:
            yield f"{name} is {tuple(value.shape)} now, {tuple(saved[name].shape)} before"
    for name in saved:
        if name not in own:
            yield f"{name} is missing"


def _optimizer_misfit(session: Session, saved: Mapping[str, Any]) -> str | None:
    """The reason why the optimizers cannot take over a saved state."""
    own = session.optimizers.state_dict()
    is_named, was_named = "param_groups" not in own, "param_groups" not in saved
    if is_named != was_named or (is_named and own.keys() != saved.keys()):
        return f"`optimizer` returns {_names(own)} now, {_names(saved)} before"
    for name in own if is_named else ("",):
        now, before = (own[name], saved[name]) if is_named else (own, saved)
        groups, saved_groups = now["param_groups"], before["param_groups"]
        if [len(group["params"]) for group in groups] != [
            len(group["params"]) for group in saved_groups
        ]:
            return "its parameter groups have different numbers of weights than before"
        # Not the groups' own: what a scheduler adds to them says nothing of the optimizer.
        settings = session.optimizers.by_name[name or ONLY].defaults.keys() - set(OF_THE_RECIPE)
        for group in saved_groups:
            if settings - group.keys():
                missing = min(settings - group.keys())
                return f"it has a setting `{missing}` that the previous optimizer did not have"
    return None


def _names(state: Mapping[str, Any]) -> str:
    if "param_groups" in state:
        return "one optimizer"
    return f"several ({', '.join(map(str, state))})"


def _does_not_fit(folder: RunFolder, part: str, because: str, command: str | None) -> UsageError:
    begin = f": {command}" if command else ""
    return UsageError(
        "state-does-not-fit",
        f"the run {folder.path.name} cannot resume with the changed file: the checkpoint does not "
        f"fit its {part}.",
        because=because,
        fix=f"change the {part} back (the run keeps the original file: {folder.experiment}), or "
        f"start a new run{begin}",
    )


def with_changed_file(spec: ExperimentSpec, changed: ChangedFile | None) -> ExperimentSpec:
    """The spec of a run that resumes with another text of its file."""
    return spec if changed is None else msgspec.structs.replace(spec, sha256=changed.sha256)
