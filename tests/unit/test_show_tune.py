"""How a search's end is told on a few lines."""

from __future__ import annotations

from flatout.cli.wording import decision_text, unused_lines
from flatout.nouns.finding import Finding
from flatout.nouns.lines import Tuned
from flatout.nouns.tuning import Candidate, Decision, Result, Rung, Trial


def decision(*problems: str, has_measured: bool = True) -> Decision:
    candidate = Candidate(name="bf16 autocast", axis="precision", changes={}, why="")
    trial = Trial(stage="screen", candidate=candidate, incumbent=None, changes={})
    lost = [
        Result(
            trial=trial,
            cost_s=0.1,
            problem=Finding(rule="experiment-raised", severity="note", problem=text),
        )
        for text in problems
    ]
    return Decision(
        is_default=True,
        changes={},
        rungs=(Rung(name="plain loop", changes={}, samples_per_s=100.0),),
        lost=(Result(trial=trial, cost_s=0.1), *lost),
        refused=(),
        skipped=(),
        speedup=None,
        why="",
        search_s=2.0,
        has_measured=has_measured,
    )


def test_what_could_not_be_measured_is_told_once_with_its_reason() -> None:
    found = unused_lines(decision("it raised TypeError", "it raised TypeError"))
    assert found == [("not used", "bf16 autocast: it raised TypeError")]


def test_what_was_not_searched_says_so() -> None:
    line = Tuned(
        at=0.0, step=0, decision=decision(has_measured=False), unit="samples", is_from_cache=False
    )
    assert decision_text(line).startswith("not searched, the defaults train")
