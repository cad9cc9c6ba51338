"""The progress of a search for a recipe, and its resulting ladder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.live import Live
from rich.text import Text

from flatout.cli.render import show
from flatout.cli.render.wording import (
    DOT,
    interval_text,
    load_lines,
    stay_lines,
    unused_lines,
    utilization_text,
)
from flatout.schema.finding import Finding
from flatout.schema.run_lines import Fetched, Line, Profiled, Tried, Trying, Warned
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Check, Decision, Payback, Result, Rung
from flatout.schema.units import count_text, counted_text, percent_text, rate_text, seconds_text

_NAME_WIDTH = 38
_RATE_WIDTH = 20
# As wide as "bf16 autocast + channels_last".
_TRIED_WIDTH = 29
_WIDTH = 80


class SearchDisplay:
    """Shows the lines of a search as they come.

    Args:
        is_quiet: everything goes to stderr, since stdout carries a document or a program.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = show.make_console(is_error=is_quiet)
        is_alive = show.is_alive(self._console)
        self._live = Live(console=self._console, auto_refresh=False) if is_alive else None
        self._doing = "loading torch and the experiment"
        self._budget = ""

    def __enter__(self) -> SearchDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def print_line(self, label: str, text: str) -> None:
        """A line that stays."""
        show.print_lines(self._console, [(label, text)])

    def take(self, lines: Iterable[Line]) -> None:
        """Shows new lines; called with none it only keeps the display alive."""
        for line in lines:
            self._announce(line)
        if self._live:
            self._live.update(Text(f"{self._doing}{self._budget}", "dim"), refresh=True)

    def fail(self, finding: Finding) -> None:
        """The last lines of a failed search."""
        self.close()
        show.print_finding(finding)

    def close(self) -> None:
        """Ends the live display."""
        if self._live:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
            self._live = None

    def _announce(self, line: Line) -> None:
        if isinstance(line, Fetched):
            self._doing = f"downloading {line.name}"
        elif isinstance(line, Warned):
            show.print_finding(line.finding, self._console)
        elif isinstance(line, Profiled):
            self._budget = f"{DOT}at most {seconds_text(line.budget_s)} in all"
            self._doing = "measuring"
            self.print_line("plain step", _profile_text(line))
        elif isinstance(line, Trying):
            num = line.trial.num_processes
            where = f" in {num} pairs of fresh processes" if num > 1 else ""
            stage = "the recipe" if line.trial.stage == "final" else line.trial.candidate.name
            self._doing = f"measuring {stage}{where}"
        elif isinstance(line, Tried) and line.result.trial.stage == "screen":
            self.print_line("tried", _result_text(line.result))


def print_tuned(tuned: TunedRecipe) -> None:
    """Candidates that lost, were rejected or do not apply; then ladder, recipe and cost.

    On stdout; where that carries the recipe's program, on stderr.
    """
    console = show.make_console(is_error=tuned.code is not None)
    decision, unit = tuned.decision, tuned.unit
    console.print()
    # The result comes last: it is what a terminal still shows when the command has ended.
    others = list(_lines_of_others(decision))
    if others:
        show.print_lines(console, others)
        console.print()
    total = None
    if decision.speedup is not None:
        total = f"  {interval_text(decision.speedup)} over the defaults"
    width = _name_width(decision.rungs, total)
    for number, rung in enumerate(decision.rungs):
        console.print(_rung_text(rung, unit, width, is_first=number == 0), soft_wrap=True)
    if total is not None and decision.samples_per_s is not None:
        text = f"{'recipe':<{width}}{rate_text(decision.samples_per_s, unit):>{_RATE_WIDTH}}"
        console.print(Text(text, "bold") + Text(total, "bold green"), soft_wrap=True)
    else:
        text = f"{'recipe':<{width}}{'defaults kept':>{_RATE_WIDTH}}"
        console.print(Text(text, "bold"), soft_wrap=True)
        show.print_lines(console, stay_lines(decision))
    if tuned.utilization is not None:
        show.print_lines(console, [("speed", utilization_text(tuned.utilization))])
    show.print_lines(console, list(_closing_lines(decision, tuned.is_from_cache)))


def _lines_of_others(decision: Decision) -> Iterator[tuple[str, str]]:
    """Lines on the choices that are not in the recipe, with reasons."""
    lost = [_lost_text(result) for result in decision.lost if result.problem is None]
    if lost:
        yield "lost", DOT.join(lost)
    yield from unused_lines(decision)
    for result in decision.refused:
        reasons = ", ".join(_check_text(check) for check in _failed(result))
        yield "rejected", f"{result.trial.candidate.name}: {reasons}"
    reasons_of: dict[str, list[str]] = {}
    for skip in decision.skipped:
        if skip.is_for_time:
            reasons_of.setdefault(skip.reason, []).append(skip.name)
    for reason, names in reasons_of.items():
        yield "not tried", f"{', '.join(names)}: {reason}"
    num_others = sum(not skip.is_for_time for skip in decision.skipped)
    if num_others:
        do = "does" if num_others == 1 else "do"
        candidates = counted_text(num_others, "candidate")
        yield "n/a", f"{candidates} {do} not apply; --json lists them with the reasons"


def _closing_lines(decision: Decision, is_from_cache: bool) -> Iterator[tuple[str, str]]:
    yield from load_lines(decision)
    if decision.uncompiled is not None:
        yield "compiled", "the first step of each run takes longer; compiled code is cached"
    price = seconds_text(decision.search_s)
    if is_from_cache:
        # Defaults that stay are not probed.
        agrees = "" if decision.is_default else ", and a short probe agrees"
        yield "search", f"{price}: found earlier{agrees}"
    elif decision.pays_back_after_steps is not None:
        steps = counted_text(decision.pays_back_after_steps, "step")
        yield "search", f"{price}, paid back after {steps}"
    else:
        yield "search", price


def _name_width(rungs: Sequence[Rung], total: str | None) -> int:
    """The widest name that lets the whole line fit."""
    gains = [f"  {interval_text(rung.gain)}" for rung in rungs if rung.gain is not None]
    longest = max([len(total or ""), *map(len, gains)])
    return min(_NAME_WIDTH, _WIDTH - _RATE_WIDTH - longest)


def _rung_text(rung: Rung, unit: str, width: int, *, is_first: bool) -> Text:
    name = rung.name if is_first else f" + {rung.name}"
    gain = f"  {interval_text(rung.gain)}" if rung.gain is not None else ""
    # A name without room has a line of its own.
    name = f"{name:<{width}}" if len(name) < width else f"{name}\n{'':<{width}}"
    return Text(f"{name}{rate_text(rung.samples_per_s, unit):>{_RATE_WIDTH}}{gain}")


def _profile_text(line: Profiled) -> str:
    profile = line.profile
    shares = sorted(profile.shares.items(), key=lambda item: -item[1])
    parts = [f"{name} {percent_text(share, 0)}" for name, share in shares if share >= 0.005]
    load = profile.load
    busy = [f"other programs use {load.text}"] if load is not None and load.is_busy else []
    return DOT.join([seconds_text(profile.step_s), *parts, *busy])


def _result_text(result: Result) -> str:
    name = f"{result.trial.candidate.name:<{_TRIED_WIDTH}}  "
    if result.speedup is None:
        reason = result.problem.problem if result.problem else "could not be measured"
        return f"{name}{reason}"
    seen = f"{DOT}{result.effect}" if result.effect else ""
    refused = ""
    if result.verdict is not None and not result.verdict.is_passed:
        refused = f"{DOT}rejected: {', '.join(_check_text(c) for c in result.verdict.failed)}"
    payback = f"{DOT}{payback_text(result.payback)}" if result.payback is not None else ""
    return f"{name}{interval_text(result.speedup)}{seen}{refused}{payback}"


def payback_text(payback: Payback) -> str:
    """The cost of compiling, and whether it pays, in words."""
    took = f"compiling took {seconds_text(payback.compile_s)}"
    if payback.after_steps is None:
        return f"{took}; it may not pay off at all"
    left = count_text(payback.num_steps)
    return f"{took}; it pays off after {counted_text(payback.after_steps, 'step')}, {left} left"


def _lost_text(result: Result) -> str:
    name, gain = result.trial.candidate.name, result.speedup
    if gain is None:
        return f"{name}: not measured"
    payback = f" ({payback_text(result.payback)})" if result.payback is not None else ""
    return f"{name} x{gain.middle:.2f}{payback}"


def _failed(result: Result) -> tuple[Check, ...]:
    return result.verdict.failed if result.verdict is not None else ()


def _check_text(check: Check) -> str:
    if check.measured is None or check.allowed is None:
        return f"{check.name}{': ' + check.note if check.note else ''}"
    return f"{check.name} {check.measured:.3g} (allowed {check.allowed:.3g})"
