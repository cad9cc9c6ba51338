"""Trials of one experiment's recipes, carried out in this process: measured, proved, judged."""

from __future__ import annotations

import contextlib
from typing import Any

from flatout.engine.contestants import Contestants, Subject
from flatout.engine.effects import seen_effect
from flatout.engine.failures import bad_news
from flatout.engine.gate import Gate
from flatout.engine.gate import Subject as Judged
from flatout.engine.measuring import Comparison, Contestant, compared
from flatout.engine.meter import Meter
from flatout.engine.session import Session
from flatout.engine.tracing import Trace, traced
from flatout.errors import UsageError
from flatout.nouns.finding import finding_from
from flatout.nouns.tuning import Check, Profile, Result, Trial, Verdict
from flatout.system.clock import elapsed_s

# The parts of a step that a profile tells the shares of.
_PARTS = ("data", "copy", "forward", "backward", "optimizer")
_PROFILED_UPDATES = 3

# A step that takes longer is looked at once, not several times.
_LONG_STEP_S = 2.0


class Contest:
    """Carries out trials of one subject.

    Args:
        subject: what is tuned.
    """

    def __init__(self, subject: Subject) -> None:
        self.contestants = Contestants(subject)
        self._gate: Gate | None = None

    def measured(self, trial: Trial, limit_s: float) -> Result:
        """Carries out a trial in this process.

        What cannot be measured becomes the result's problem: a search goes on without it.
        """
        begin_s = elapsed_s()
        comparison: Comparison | None = None
        effect, problem = None, None
        try:
            comparison, effect = self._compared(trial, limit_s)
        except Exception as error:
            news = bad_news(error)
            if news is None:
                raise
            problem = finding_from(news, "note")
        return Result(
            trial=trial,
            cost_s=elapsed_s() - begin_s,
            speedup=comparison.speedup if comparison else None,
            samples_per_s=comparison.samples_per_s if comparison else None,
            incumbent_samples_per_s=comparison.incumbent_samples_per_s if comparison else None,
            effect=effect,
            problem=problem,
        )

    def judged(self, changes: dict[str, Any]) -> Verdict:
        """Whether a candidate still computes what the plain step computes."""
        contestants = self.contestants
        if self._gate is None:
            subject = contestants.subject
            judged = Judged(
                experiment=subject.experiment,
                seed=subject.seed,
                device=subject.device_name,
                train_data=contestants.train_data,
            )
            self._gate = Gate(judged, contestants.plain_recipe())
        try:
            return self._gate.judge(contestants.recipe(changes))
        except Exception as error:
            news = bad_news(error)
            if news is None:
                raise
            # What cannot be judged, for want of memory for one, is not used.
            check = Check(name="gate", is_passed=False, note=f"could not be asked: {news.problem}")
            return Verdict(checks=(check,))

    def contestant(
        self, changes: dict[str, Any] | None, proved: dict[str, Any]
    ) -> tuple[Contestant, str | None]:
        """Builds who is to be measured, and makes sure that it is what it says.

        Args:
            changes: all recipe fields; None is the plain loop.
            proved: of them, those that must be seen to take effect.

        Returns:
            The contestant, and in which way the proved fields were seen; whoever calls closes it.

        Raises:
            UsageError: setting-without-effect, or the recipe cannot be carried out here.
        """
        contestants = self.contestants
        if changes is None:
            return contestants.plain(), None
        session = contestants.session(changes)
        contestant = contestants.contestant(session)
        if not proved:
            return contestant, None
        try:
            return contestant, _proved(proved, session, contestant)
        except Exception:
            contestant.runner.close()
            raise

    def plain_step(self) -> tuple[float, Trace]:
        """What a plain step takes, in seconds, and which operators it calls."""
        contestant = self.contestants.plain()
        batch_size = self.contestants.setting.batch_size
        begin_s = elapsed_s()
        trace = traced(lambda: contestant.timed(1))
        traced_s = elapsed_s() - begin_s
        # Looking on costs little of a step that takes long, and another one would cost much.
        per_sample_s = traced_s / batch_size
        if traced_s < _LONG_STEP_S:
            blocks = [contestant.timed(1) for _ in range(_PROFILED_UPDATES)]
            per_sample_s = min(block.per_sample_s for block in blocks)
        contestant.runner.close()
        return per_sample_s * batch_size, trace

    def profile(self, step_s: float, trace: Trace, start_s: float) -> Profile:
        """One plain step looked at from inside.

        Args:
            step_s, trace: of a plain step.
            start_s: what it takes to start a process and to build the experiment in it.
        """
        return Profile(
            step_s=step_s,
            start_s=start_s,
            shares=self._shares(step_s),
            num_operations=trace.num_operations,
            has_convolutions=trace.has_convolutions,
            has_products=trace.has_products,
            has_attention=trace.has_attention,
        )

    def _shares(self, step_s: float) -> dict[str, float]:
        session = self.contestants.session({})
        meter = Meter(session.device)
        contestant = self.contestants.contestant(session, meter)
        is_long = step_s > _LONG_STEP_S
        if not is_long:
            contestant.timed(1)
        before = meter.split_s()
        contestant.timed(1 if is_long else _PROFILED_UPDATES)
        after = meter.split_s()
        contestant.runner.close()
        spent = {part: after[part] - before[part] for part in _PARTS}
        total = sum(spent.values()) or 1.0
        return {part: seconds / total for part, seconds in spent.items()}

    def _compared(self, trial: Trial, limit_s: float) -> tuple[Comparison, str | None]:
        with contextlib.ExitStack() as stack:
            incumbent, _ = self.contestant(trial.incumbent, {})
            stack.callback(incumbent.runner.close)
            candidate, effect = self.contestant(trial.changes, trial.candidate.changes)
            stack.callback(candidate.runner.close)
            return compared(incumbent, candidate, limit_s=limit_s), effect


def _proved(changes: dict[str, Any], session: Session, candidate: Contestant) -> str:
    """Makes sure that what is measured is what it says.

    Raises:
        UsageError: setting-without-effect.
    """
    # The first update makes the optimizer's state in other operations than all that follow.
    candidate.timed(1)
    trace = traced(lambda: candidate.timed(1))
    with candidate.settings():
        effect = seen_effect(changes, session, trace)
    if effect is None:
        fields = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise UsageError(
            "setting-without-effect",
            f"`{fields}` has no effect here.",
            because="nothing of it was seen in a step made under it",
            fix="leave it out",
        )
    return effect
