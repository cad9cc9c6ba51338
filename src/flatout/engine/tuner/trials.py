"""Trials of one experiment's recipes, carried out in this process: measured, proved, judged."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from flatout.engine.gate import Gate, GateSubject
from flatout.engine.gate.batch_splitting import Training, why_not_split
from flatout.engine.runtime.allocator import page_faults
from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory, to_flatout_error
from flatout.engine.runtime.gpu_memory import MemoryWatch, release_memory
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.compiled import as_written, check_shapes, compilers
from flatout.engine.session.session import Session
from flatout.engine.step.captured_step import NUM_WARM_UPS
from flatout.engine.tuner.ab_timing import RecipeLoop, SpeedComparison, TimedLoop, compared
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.engine.tuner.effect_checks import UpdateEvidence, observed_effect
from flatout.engine.tuner.op_trace import Trace, traced
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import finding_from
from flatout.schema.tuning import Check, GateVerdict, Profile, Result, Trial
from flatout.system.clock import elapsed_s
from flatout.system.load import LoadWatch
from flatout.tune.memory import accumulated, recomputing

# The parts of a step whose shares a profile reports.
_PARTS = ("data", "copy", "forward", "backward", "optimizer")
_PROFILED_UPDATES = 3

# Updates in which something is compiled.
_NUM_COMPILING = 2

# A step that takes longer is profiled once, not several times.
_LONG_STEP_S = 2.0


@dataclass(frozen=True, kw_only=True)
class EffectProof:
    """The visible effects of settings, and the time of the first updates.

    first_s: of those in which what is compiled is compiled; None where nothing was proved.
    """

    effect: str | None = None
    first_s: float | None = None


class Trials:
    """Carries out trials of one subject.

    lost: what has taken the GPU from this process, where a trial did; nothing that is computed
        here from then on can be trusted.

    Args:
        subject: what is tuned.
    """

    def __init__(self, subject: TuningTask) -> None:
        self.builder = CandidateBuilder(subject)
        self._subject = subject
        self._gate: Gate | None = None
        self.lost: FlatoutError | None = None

    def measured(self, trial: Trial, limit_s: float, ends_at_s: float = math.inf) -> Result:
        """Carries out a trial in this process.

        What cannot be measured becomes the result's problem: the search continues without it.

        Args:
            trial: what is compared.
            limit_s: for the measurement.
            ends_at_s: by the clock, when the search ends.
        """
        begin_s, watch = elapsed_s(), LoadWatch()
        comparison: SpeedComparison | None = None
        proof, problem = EffectProof(), None
        try:
            comparison, proof = self._compared(trial, limit_s, ends_at_s)
        except Exception as error:
            known_error = _known_error(self, error)
            if known_error is None:
                raise
            problem = finding_from(known_error, "note")
        if comparison is None and self.lost is None:
            release_memory()
        return Result(
            trial=trial,
            cost_s=elapsed_s() - begin_s,
            speedup=comparison.speedup if comparison else None,
            samples_per_s=comparison.samples_per_s if comparison else None,
            incumbent_samples_per_s=comparison.incumbent_samples_per_s if comparison else None,
            effect=proof.effect,
            problem=problem,
            excess_bytes=comparison.excess_bytes if comparison else 0,
            compile_s=_compile_s(comparison, proof, self.builder.setting.batch_size)
            if trial.candidate.is_compiled
            else None,
            load=watch.load(),
        )

    def judged(self, changes: dict[str, Any]) -> GateVerdict:
        """Whether a candidate still computes what the plain step computes."""
        builder = self.builder
        if self._gate is None:
            subject = builder.subject
            gate_subject = GateSubject(
                experiment=subject.experiment,
                seed=subject.seed,
                device=subject.device_name,
                train_data=builder.train_data,
            )
            self._gate = Gate(gate_subject, builder.plain_recipe())
        try:
            return self._gate.judge(builder.recipe(changes))
        except Exception as error:
            known_error = _known_error(self, error)
            if known_error is None:
                raise
            # What cannot be judged, for example because memory is short, is not used.
            check = Check(
                name="gate", is_passed=False, note=f"could not be checked: {known_error.problem}"
            )
            return GateVerdict(checks=(check,))

    def contestant(
        self,
        changes: dict[str, Any] | None,
        proved: dict[str, Any],
        *,
        is_of_part: bool = False,
    ) -> tuple[TimedLoop, EffectProof]:
        """Builds a contestant, and makes sure that its settings take effect.

        Args:
            changes: all recipe fields; None is the plain loop.
            proved: of them, those that must be seen to take effect.
            is_of_part: reads a part of the samples, as who keeps them does.

        Returns:
            The contestant, and how the proved fields were seen; the caller closes it.

        Raises:
            UsageError: setting-without-effect, or the recipe cannot be carried out here.
        """
        builder = self.builder
        watch = MemoryWatch(builder.device)
        if changes is None:
            return builder.plain(is_of_part=is_of_part), EffectProof()
        session = builder.session(changes, is_of_part=is_of_part)
        contestant = dataclasses.replace(builder.contestant(session), watch=watch)
        # A setting of the user's is kept; that it has no effect is a warning, not an error.
        proved = {
            name: value for name, value in proved.items() if name not in builder.subject.fixed
        }
        if not proved:
            return contestant, EffectProof()
        try:
            check_shapes(session)
            return contestant, _proved(proved, session, contestant)
        except Exception:
            contestant.runner.close()
            raise

    def plain_step(self) -> tuple[float, Trace]:
        """The time of a plain step in seconds, and the operators it calls.

        Where the plain loop does not fit into the memory, the first one that does is measured, and
        is the plain loop from now on.

        Raises:
            RunFailed: out-of-memory, where none does that computes the same.
        """
        measured = self._plain_step({})
        if measured is not None:
            return measured
        pieces = accumulated(self.builder.setting)
        verdict = self.judged(pieces[0]) if pieces else None
        is_right = verdict is not None and verdict.is_passed
        why_not = _why_not_split(self._subject, self.builder) if is_right else None
        is_right = is_right and why_not is None
        for baseline in (*(pieces if is_right else ()), *recomputing(self.builder.setting)):
            measured = self._plain_step(baseline)
            if measured is not None:
                return measured
        has_batch_norm = self.builder.setting.has_batch_norm
        raise _fits_nowhere(verdict, why_not, has_batch_norm=has_batch_norm)

    def take_as_plain(self, baseline: dict[str, Any]) -> None:
        """Gives the plain loop these recipe fields, which it needs to fit."""
        builder = self.builder
        builder.setting = msgspec.structs.replace(builder.setting, baseline=baseline)
        # It compares with the plain step.
        self._gate = None

    def _plain_step(self, baseline: dict[str, Any]) -> tuple[float, Trace] | None:
        """None where there is not enough memory for it."""
        self.take_as_plain(baseline)
        try:
            return self._measured_step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory()
        self.take_as_plain({})
        return None

    def _measured_step(self) -> tuple[float, Trace]:
        batch_size = self.builder.setting.batch_size
        try:
            contestant = self.builder.plain()
            begin_s = elapsed_s()
            trace = traced(lambda: contestant.timed(1))
        except Exception as error:
            # A plain loop only fails; flatout's own looks at samples and losses, and says why.
            if not is_out_of_memory(error):
                self._one_update_of_its_own()
            raise
        traced_s = elapsed_s() - begin_s
        # The first one is not like the others: its threads may have got into each other's way.
        num_updates = _PROFILED_UPDATES if traced_s < _LONG_STEP_S else 1
        blocks = [contestant.timed(1) for _ in range(num_updates)]
        per_sample_s = min(block.per_sample_s for block in blocks)
        contestant.runner.close()
        return per_sample_s * batch_size, trace

    def _one_update_of_its_own(self) -> None:
        contestant = self.builder.contestant(self.builder.session({}))
        try:
            contestant.timed(1)
        finally:
            contestant.runner.close()

    def profile(
        self, step_s: float, trace: Trace, start_s: float, watch: LoadWatch | None = None
    ) -> Profile:
        """One plain step looked at from inside.

        Args:
            step_s, trace: of a plain step.
            start_s: what it takes to start a process and to build the experiment in it.
            watch: of other programs, started before the plain step was measured.

        Raises:
            RunFailed: nonfinite-loss.
        """
        shares, num_page_faults, host_share = self._shares(step_s)
        return Profile(
            step_s=step_s,
            start_s=start_s,
            shares=shares,
            num_page_faults=num_page_faults,
            host_share=host_share,
            num_operations=trace.num_operations,
            has_convolutions=trace.has_convolutions,
            has_products=trace.has_products,
            has_attention=trace.has_attention,
            load=watch.load() if watch is not None else None,
        )

    def _shares(self, step_s: float) -> tuple[dict[str, float], int | None, float | None]:
        """The shares of an update's time, the number of new pages of memory it waits for, and the
        host's share.
        """
        session = self.builder.session({})
        timer = StepTimer(session.device)
        contestant = self.builder.contestant(session, timer)
        loop = contestant.runner
        assert isinstance(loop, RecipeLoop), "flatout's loop has a recipe"
        is_long = step_s > _LONG_STEP_S
        if not is_long:
            contestant.timed(1)
        num_updates = 1 if is_long else _PROFILED_UPDATES
        before, first = timer.split_s(), page_faults()
        contestant.timed(num_updates)
        after, last = timer.split_s(), page_faults()
        host_share = _host_share(contestant, num_updates)
        is_finite = loop.has_finite_losses() or session.recipe.nonfinite_loss.value == "skip"
        loop.close()
        if not is_finite:
            raise RunFailed(
                "nonfinite-loss",
                "the loss is NaN or infinite in the first updates.",
                because="speeds measured on such values are meaningless",
                fix="lower the learning rate, set clip_norm, check the data; "
                "`flatout train --tune off` names the step and its samples",
            )
        spent = {part: after[part] - before[part] for part in _PARTS}
        total = sum(spent.values()) or 1.0
        faults = None if first is None or last is None else (last - first) // num_updates
        shares = {part: seconds / total for part, seconds in spent.items()}
        return shares, faults, host_share

    def _compared(
        self, trial: Trial, limit_s: float, ends_at_s: float
    ) -> tuple[SpeedComparison, EffectProof]:
        # The incumbent of a cache of part of the samples reads the same part without it.
        is_of_part = trial.keeps_samples
        with contextlib.ExitStack() as stack:
            incumbent, _ = self.contestant(trial.incumbent, {}, is_of_part=is_of_part)
            stack.callback(incumbent.runner.close)
            # The defaults hold whether or not something of them is seen.
            proved = {} if trial.candidate.axis == "loop" else trial.candidate.changes
            candidate, proof = self.contestant(trial.changes, proved, is_of_part=is_of_part)
            stack.callback(candidate.runner.close)
            return compared(incumbent, candidate, limit_s=limit_s, ends_at_s=ends_at_s), proof


def _known_error(trials: Trials, error: Exception) -> FlatoutError | None:
    """The finding about a trial; notes whether it has taken the GPU from this process."""
    first: BaseException | None = error
    while first is not None and not isinstance(first, CaptureBroken):
        # What is put back on the way out may fail, too.
        first = first.__cause__ or first.__context__
    if first is None:
        return to_flatout_error(error)
    trials.lost = to_flatout_error(first)
    return trials.lost


def _why_not_split(subject: TuningTask, builder: CandidateBuilder) -> str | None:
    """The gate does not check the validation, which sees parts of a batch, too."""
    training = Training(
        # With the validation data, which no contestant has.
        experiment=subject.experiment,
        seed=subject.seed,
        device=builder.device,
        data=builder.train_data,
    )
    return why_not_split(training, builder.plain_recipe())


def _compile_s(
    comparison: SpeedComparison | None, proof: EffectProof, batch_size: int
) -> float | None:
    """The extra time of the first updates over those that followed."""
    if comparison is None or proof.first_s is None:
        return None
    return max(0.0, proof.first_s - _NUM_COMPILING * batch_size / comparison.samples_per_s)


def _host_share(contestant: TimedLoop, num_updates: int) -> float | None:
    """The host's share of the time of updates; None on a CPU."""
    if contestant.device.type != "cuda":
        return None
    with contestant.settings():
        torch.cuda.synchronize(contestant.device)
        begin_s = elapsed_s()
        contestant.runner.run(num_updates)
        host_s = elapsed_s() - begin_s
        torch.cuda.synchronize(contestant.device)
        return host_s / (elapsed_s() - begin_s)


def _fits_nowhere(
    verdict: GateVerdict | None, why_not: str | None, *, has_batch_norm: bool
) -> RunFailed:
    because = "a single sample needs more memory than there is"
    if has_batch_norm:
        because = "with micro-batches, BatchNorm would compute its statistics over each of them"
    elif why_not is not None:
        because = f"with micro-batches, {why_not}"
    elif verdict is not None and not verdict.is_passed:
        notes = "; ".join(check.note or check.name for check in verdict.failed)
        because = f"with micro-batches, it does not compute the same: {notes}"
    return RunFailed(
        "out-of-memory",
        "the plain loop does not fit into memory, and no variant that uses less memory gives the "
        "same result.",
        because=because,
        fix="use a smaller batch_size or model; or use micro-batches regardless: --use "
        "micro_batch_size=N",
    )


def _proved(changes: dict[str, Any], session: Session, candidate: TimedLoop) -> EffectProof:
    """Makes sure that what is measured is what it says.

    Raises:
        UsageError: setting-without-effect.
    """
    # The first update makes the optimizer's state in other operations than all that follow. The
    # loss is compiled in it, and the optimizer's step in the second.
    num_updates = _NUM_COMPILING if compilers(session) else 1
    first_s = sum(candidate.timed(1).took_s for _ in range(num_updates))
    with as_written(session):
        trace = traced(lambda: candidate.timed(1))
    with candidate.settings():
        loop = candidate.runner
        assert isinstance(loop, RecipeLoop)
        if changes.get("capture") == "step":
            loop.run(NUM_WARM_UPS + session.recipe.steps_per_launch.value)
        evidence = UpdateEvidence(session=session, trace=trace, update=loop.newest, step=loop.step)
        effect = observed_effect(changes, evidence)
    if effect is None:
        fields = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise UsageError(
            "setting-without-effect",
            f"`{fields}` has no effect here.",
            because="a step run with it showed no trace of it",
            fix="leave it out",
        )
    return EffectProof(effect=effect, first_s=first_s)
