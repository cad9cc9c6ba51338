"""Drives the search for a recipe: runs its trials, and logs each in the run's folder.

What was found is kept, and used again for the same model on the same machine once a short probe
agrees with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from flatout.engine.recipe.experiment_facts import restored_device
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tuner.ab_timing import out_of_time
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.compile_trial_process import judged_in_child, measured_in_child
from flatout.engine.tuner.stored_recipe import measured_fields
from flatout.engine.tuner.trial_process import (
    Terms,
    TrialContext,
    measured_in_fresh_processes,
    patience_s,
)
from flatout.engine.tuner.trials import Trials
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import finding_from
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import Event, Profiled, Tried, Trying, Tuned
from flatout.schema.tuning import (
    Candidate,
    Decision,
    Interval,
    Known,
    Profile,
    Result,
    Setting,
    Trial,
    TuneRequest,
)
from flatout.system.clock import elapsed_s, now_s
from flatout.system.free_memory import free_memory_bytes
from flatout.system.load import LoadWatch
from flatout.system.store import recipe_cache
from flatout.tune.budget import budget_of, full_s, is_too_short
from flatout.tune.cache import cache_key, is_of_use, search_identity, still_holds
from flatout.tune.candidates import base_candidate, candidates
from flatout.tune.compiled_trials import left_to_compile
from flatout.tune.compiling import for_steps, uncompiled
from flatout.tune.data_paths import LEAST_SHARE
from flatout.tune.memory import loop_name, unless_moved
from flatout.tune.outcomes import is_faster
from flatout.tune.problem import Problem
from flatout.tune.search import next_move, priced

# A known recipe is checked before every training, so briefly: it only has to be seen that it is
# still faster. A second look, if another program had the cores during the first.
_PROBE_S = 0.5
_PROBES = 2

# Of the whole time, for what comes after the last trial.
_RESERVED_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Search:
    """The dependencies of a search.

    num_steps: of the run to tune; None if unknown.
    load_s: what this process took until it had the experiment's file; another one takes as long.
    on_event: takes each line as it comes.
    folder: of the run, from which other processes load the experiment; None in a notebook.
    lose: is called if a trial has taken the GPU from this process: the search continues in others,
        and the training must be in another, too. None ends the search with that error.
    """

    subject: TuningTask
    options: TuneRequest
    num_steps: int | None
    request: StopRequest
    on_event: Callable[[Event], None]
    folder: Path | None
    load_s: float = 0.0
    lose: Callable[[FlatoutError], None] | None = None


def tuned_recipe(search: Search) -> Recipe | None:
    """The recipe by measuring; None to use the defaults.

    Raises:
        KeyboardInterrupt: a stop was requested.
        UsageError: no-search-for-own-step.
    """
    if search.subject.experiment.step is not None:
        raise UsageError(
            "no-search-for-own-step",
            "cannot tune an experiment with its own `step`: there is no plain loop to compare "
            "with.",
            because="the step is written for flatout's `updates`",
            fix="try settings with --use, and compare the runs with `flatout compare`",
        )
    # Every contestant sets seeds, and the GPU: restore them for the caller.
    with rng.untouched_generators(chosen_device(search.subject.device_name)), restored_device():
        return _tuned_recipe(search)


def _tuned_recipe(search: Search) -> Recipe | None:
    began_s = elapsed_s()
    trials = Trials(search.subject)
    # Its data was there already: another process will not download it either.
    start_s = search.load_s + elapsed_s() - began_s
    # What fresh processes have confirmed is more than what was seen in one.
    has_processes = search.folder is not None
    identity = search_identity(
        trials.builder.identity, search.options.numerics, has_processes=has_processes
    )
    key = cache_key(identity)
    known = recipe_cache.recall(key)
    if (
        known is not None
        and is_of_use(known, search.options)
        and not _is_outgrown(known, search, trials)
    ):
        confirmed = _confirmed(trials, known)
        if confirmed is not None:
            return _recipe(trials, _decision_again(search, trials, (key, confirmed), began_s))
        _forget(key, trials)
    if is_too_short(search.options, search.num_steps):
        return None
    watch = LoadWatch()
    step_s, trace = trials.plain_step()
    budget_s = budget_of(search.options, search.num_steps, step_s)
    if budget_s is None:
        is_short_of_memory = bool(trials.builder.setting.baseline)
        return trials.builder.default_recipe() if is_short_of_memory else None
    try:
        profile = trials.profile(step_s, trace, start_s, watch)
    except RunFailed as error:
        if error.rule != "nonfinite-loss" or search.options.is_only:
            raise
        # The training names step and samples; from weights that it is given it may do better.
        return trials.builder.default_recipe()
    decision, measured_here = _decision(search, trials, profile, (budget_s, began_s))
    probe = None
    if not uncompiled(decision).is_default:
        probe = measured_here or _last_probe(search, trials, decision, profile).speedup
    decision = priced(decision, elapsed_s() - began_s, trials.builder.setting.batch_size)
    if not decision.is_decided:
        # The next training has the defaults, and the next search starts over.
        _log_end(search, decision, is_from_cache=False)
        return _recipe(trials, decision)
    known = Known(
        identity=identity,
        decided_at=now_s(),
        budget_s=budget_s,
        is_thorough=budget_s >= full_s(step_s),
        decision=decision,
        probe=probe,
        profile=profile,
        is_read_once=_is_read_once(trials, search.num_steps),
    )
    recipe_cache.keep(key, known)
    _log_end(search, decision, is_from_cache=False)
    return _recipe(trials, decision)


def _forget(key: str, trials: Trials) -> None:
    """Drops what was found before and does not hold.

    Raises:
        RunFailed: gpu-state-lost, if finding that out took the GPU; the next process searches.
    """
    recipe_cache.drop(key)
    if trials.lost is not None:
        raise trials.lost


def _is_read_once(trials: Trials, num_steps: int | None) -> bool:
    cache_subset = trials.builder.cache_subset
    return cache_subset is not None and cache_subset.is_read_once(num_steps)


def _is_outgrown(known: Known, search: Search, trials: Trials) -> bool:
    """Whether keeping samples was not tried for a short run, and a search as long as that one may
    be made for this run, which reads them again.
    """
    if not known.is_read_once or _is_read_once(trials, search.num_steps):
        return False
    budget_s = _budget_again_s(search, known)
    return budget_s is not None and budget_s >= known.budget_s


def _budget_again_s(search: Search, known: Known) -> float | None:
    """The time for a search where a decision is known; None for no search."""
    if known.profile is None or is_too_short(search.options, search.num_steps):
        return None
    return budget_of(search.options, search.num_steps, known.profile.step_s)


def _decision_again(
    search: Search, trials: Trials, cached: tuple[str, Known], began_s: float
) -> Decision:
    """An earlier decision for this run: with compiled parts if they pay in it.

    What the search before had no reason or no time to compile is tried now, if this one has.
    """
    key, known = cached
    batch_size = trials.builder.setting.batch_size
    decision = for_steps(known.decision, search.num_steps, batch_size)
    budget_s, is_from_cache = _budget_again_s(search, known), True
    if budget_s is not None and known.profile is not None:
        setting = _setting(search, trials)
        problem = _problem(search, setting, known.profile, (budget_s, began_s))
        problem = left_to_compile(problem, uncompiled(decision))
        is_from_cache = isinstance(next_move(problem, []), Decision)
        if not is_from_cache:
            _log_profile(search, problem)
        decision, _ = _run_trials(search, trials, problem)
    if not is_from_cache:
        known = msgspec.structs.replace(known, decided_at=now_s(), decision=decision)
        recipe_cache.keep(key, known)
    decision = priced(decision, elapsed_s() - began_s, batch_size)
    _log_end(search, decision, is_from_cache=is_from_cache)
    return decision


def _log_end(search: Search, decision: Decision, *, is_from_cache: bool) -> None:
    search.on_event(
        Tuned(
            at=now_s(),
            step=0,
            decision=decision,
            unit=search.subject.experiment.unit,
            is_from_cache=is_from_cache,
        )
    )


def _has_memory_for_pairs() -> bool:
    """Whether two more processes like this one fit into main memory: each reads its own data."""
    return free_memory_bytes() > 2 * int(psutil.Process().memory_info().rss)


def _confirmed(trials: Trials, known: Known) -> Known | None:
    """An earlier decision, if a short probe agrees with it; defaults that stayed need none.

    What was found while other programs ran is measured again more closely once they are gone: it
    must be faster than the defaults then, too, and has from then on that probe's speed-up.
    """
    trials.take_as_plain(known.decision.rungs[0].changes)
    if uncompiled(known.decision).is_default:
        return known
    # Another program may have had the cores for a moment: then a second look decides.
    for _ in range(_PROBES if known.probe is not None else 0):
        measured = _probe(trials, known.decision)
        probe = measured.speedup
        if probe is None or known.probe is None or probe.middle < 1.0:
            continue
        if known.decision.is_busy and not measured.is_busy:
            if probe.low > 1.0:
                quiet = msgspec.structs.replace(known.decision, load=measured.load)
                return msgspec.structs.replace(known, decision=quiet, probe=probe)
        elif still_holds(known.probe, probe):
            return known
    return None


def _probe(trials: Trials, decision: Decision) -> Result:
    """A short look at the speed-up over the defaults in this process, to be compared with others.

    It is not what fresh processes have found: settings of the process are here those of both.
    """
    return trials.measured(_probing(trials, decision), _PROBE_S)


def _probing(trials: Trials, decision: Decision) -> Trial:
    # Compiling would take longer than all else of it.
    changes = uncompiled(decision).changes
    whole = Candidate(name="probe", axis="probe", changes=changes, why="found before")
    defaults = base_candidate(trials.builder.setting).changes
    return Trial(stage="final", candidate=whole, incumbent=defaults, changes=changes)


def _last_probe(search: Search, trials: Trials, decision: Decision, profile: Profile) -> Result:
    """The same at the end of a search, in another process where this one has lost its GPU."""
    if trials.lost is None:
        measured = _probe(trials, decision)
        if trials.lost is None:
            return measured
        _report_lost_gpu(search, trials)
    trial = _probing(trials, decision)
    context = _trial_context(search, trials, trial, (profile.start_s, math.inf))
    deadline_s = _PROBE_S + patience_s(profile.start_s)
    trial = msgspec.structs.replace(trial, deadline_s=deadline_s)
    return measured_in_child(trial, _PROBE_S, context)


def _decision(
    search: Search, trials: Trials, profile: Profile, time_s: tuple[float, float]
) -> tuple[Decision, Interval | None]:
    """The decision of the trials, with this process's own measurement, if any.

    time_s: what the search may take, and when it began.
    """
    setting = _setting(search, trials)
    cache_subset = trials.builder.cache_subset
    if cache_subset is not None and profile.shares.get("data", 0.0) >= LEAST_SHARE:
        # Some samples are read for it.
        setting = msgspec.structs.replace(setting, cache=cache_subset.cost(search.num_steps))
    problem = _problem(search, setting, profile, time_s)
    _log_profile(search, problem)
    decision, history = _run_trials(search, trials, problem)
    return decision, _speedup_here(uncompiled(decision), dict(problem.base.changes), history)


def _setting(search: Search, trials: Trials) -> Setting:
    can_start = search.folder is not None and _has_memory_for_pairs()
    return msgspec.structs.replace(
        trials.builder.setting, has_processes=can_start, num_steps=search.num_steps
    )


def _problem(
    search: Search, setting: Setting, profile: Profile, time_s: tuple[float, float]
) -> Problem:
    budget_s, began_s = time_s
    spent_s = elapsed_s() - began_s
    tried, skipped = candidates(setting, profile, search.options.numerics)
    return Problem(
        base=base_candidate(setting),
        candidates=tried,
        skipped=skipped,
        profile=profile,
        # The last probe and what is written take a little, too.
        budget_s=(1.0 - _RESERVED_SHARE) * budget_s - spent_s,
        spent_s=spent_s,
        # A search requested without a budget takes at least one trial.
        is_bound=search.options.budget_s is not None or search.options.mode == "auto",
        batch_size=setting.batch_size,
        can_start=setting.has_processes,
        plain_name=loop_name(setting.baseline, setting.batch_size),
        baseline=setting.baseline,
        num_steps=search.num_steps,
    )


def _log_profile(search: Search, problem: Problem) -> None:
    search.on_event(
        Profiled(
            at=now_s(),
            step=0,
            profile=problem.profile,
            num_candidates=len(problem.candidates),
            budget_s=problem.budget_s,
        )
    )


def _run_trials(search: Search, trials: Trials, problem: Problem) -> tuple[Decision, list[Result]]:
    """Carries out trials until it is decided."""
    history: list[Result] = []
    # An unlimited search makes its first comparison, however long it takes.
    ends_at_s = elapsed_s() + problem.budget_s
    while isinstance(move := next_move(problem, history), Trial):
        if search.request.reason is not None:
            raise KeyboardInterrupt
        search.on_event(Trying(at=now_s(), step=0, trial=move))
        has_end = problem.is_bound or history
        state = _SearchState(search, problem, ends_at_s if has_end else math.inf)
        result = _run_trial(move, trials, state)
        search.on_event(Tried(at=now_s(), step=0, result=result))
        history.append(result)
    return move, history


def _speedup_here(
    decision: Decision, defaults: dict[str, Any], history: Sequence[Result]
) -> Interval | None:
    """This process's measurement of a decision against the defaults, the last time."""
    for result in reversed(history):
        trial = result.trial
        is_here = trial.num_processes == 0 and trial.incumbent == defaults
        if is_here and trial.changes == decision.changes and result.speedup is not None:
            return result.speedup
    return None


@dataclass(frozen=True)
class _SearchState:
    """The inputs of a trial, and the end of its search by the clock."""

    search: Search
    problem: Problem
    ends_at_s: float


def _run_trial(trial: Trial, trials: Trials, state: _SearchState) -> Result:
    search, problem = state.search, state.problem
    limit_s = trial.effort * problem.limit_s
    is_here = trial.num_processes == 0 and trial.deadline_s is None
    if search.folder is None or (is_here and trials.lost is None):
        result = trials.measured(trial, limit_s, state.ends_at_s)
    else:
        times_s = trial.effort * problem.process_s, state.ends_at_s
        context = _trial_context(search, trials, trial, times_s)
        if trials.lost is None:
            # What this process keeps of the GPU's memory for later, the others need now.
            release_memory()
        if is_here or trial.deadline_s is not None:
            result = measured_in_child(_bounded(trial, limit_s, state), limit_s, context)
            result = msgspec.structs.replace(result, trial=trial)
        else:
            result = measured_in_fresh_processes(trial, limit_s, context)
    _report_lost_gpu(search, trials)
    result = unless_moved(result, trials.builder.setting)
    # What came out on top was judged as the last rung: the same changes. The defaults are what
    # trains without a search.
    is_known = trial.stage == "final" or trial.candidate.axis == "loop"
    if is_known or not is_faster(result) or result.verdict is not None:
        return result
    return _with_verdict(result, trials, state)


def _with_verdict(result: Result, trials: Trials, state: _SearchState) -> Result:
    begin_s, trial = elapsed_s(), result.trial
    if begin_s > state.ends_at_s:
        late = finding_from(out_of_time(), "note")
        return msgspec.structs.replace(result, speedup=None, problem=late)
    if trials.lost is None:
        verdict = trials.judged(trial.changes)
        _report_lost_gpu(state.search, trials)
    else:
        times_s = state.problem.process_s, state.ends_at_s
        context = _trial_context(state.search, trials, trial, times_s)
        verdict = judged_in_child(_bounded(trial, 0.0, state), context)
    gate_s = elapsed_s() - begin_s
    return msgspec.structs.replace(
        result, verdict=verdict, gate_s=gate_s, cost_s=result.cost_s + gate_s
    )


def _trial_context(
    search: Search, trials: Trials, trial: Trial, times_s: tuple[float, float]
) -> TrialContext:
    """The context of a trial in another process; times_s: usual time of one, and the end of all."""
    assert search.folder is not None, "a notebook's experiment cannot be loaded in another process"
    cache_subset = trials.builder.cache_subset
    terms = Terms(
        device_name=search.subject.device_name,
        fixed=search.subject.fixed,
        baseline=trials.builder.setting.baseline,
        room=search.subject.room,
        part_size=cache_subset.size if cache_subset is not None and trial.keeps_samples else None,
    )
    usual_s, ends_at_s = times_s
    return TrialContext(
        folder=search.folder,
        usual_s=usual_s,
        terms=terms,
        request=search.request,
        ends_at_s=ends_at_s,
    )


def _bounded(trial: Trial, limit_s: float, state: _SearchState) -> Trial:
    """The trial with a deadline, as one in another process has it."""
    if trial.deadline_s is not None:
        return trial
    usual_s = trial.effort * state.problem.process_s
    deadline_s = min(limit_s + patience_s(usual_s), state.ends_at_s - elapsed_s())
    return msgspec.structs.replace(trial, deadline_s=max(0.0, deadline_s))


def _report_lost_gpu(search: Search, trials: Trials) -> None:
    """Says that this process has lost its GPU, if it has.

    Raises:
        RunFailed: gpu-state-lost, where no other process can continue without it.
    """
    if trials.lost is None:
        return
    if search.lose is None:
        raise trials.lost
    search.lose(trials.lost)


def _recipe(trials: Trials, decision: Decision) -> Recipe:
    """The recipe that a search has decided on: each field with what it gained."""
    builder = trials.builder
    fields = measured_fields(decision, builder.setting.fixed)
    return msgspec.structs.replace(builder.default_recipe(), **fields)
