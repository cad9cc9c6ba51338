"""How a search's end is told on a few lines."""

from __future__ import annotations

import msgspec
import pytest

from flatout.cli.render.show_tune import print_tuned
from flatout.cli.render.wording import decision_text, unused_lines
from flatout.schema.finding import Finding
from flatout.schema.run_lines import Tuned
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Candidate, Decision, Result, Rung, Skip, Trial


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


def test_what_could_not_be_measured_is_reported_once_with_its_reason() -> None:
    found = unused_lines(decision("it raised TypeError", "it raised TypeError"))
    assert found == [("not used", "bf16 autocast: it raised TypeError")]


def test_what_was_not_searched_says_so() -> None:
    line = Tuned(
        at=0.0, step=0, decision=decision(has_measured=False), unit="samples", is_from_cache=False
    )
    assert decision_text(line).startswith("not searched; training with the defaults")


def skipped(count: int, *, is_for_time: bool = False) -> tuple[Skip, ...]:
    return tuple(
        Skip(name=f"candidate {n}", axis="loop", reason=f"reason {n}", is_for_time=is_for_time)
        for n in range(count)
    )


def shown(capsys: pytest.CaptureFixture[str], skips: tuple[Skip, ...]) -> list[str]:
    found = msgspec.structs.replace(decision(), skipped=skips)
    print_tuned(
        TunedRecipe(folder="", recipe=None, decision=found, unit="samples", is_from_cache=False)
    )
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("count", "text"), [(14, "14 candidates do not apply"), (1, "1 candidate does not apply")]
)
def test_the_result_comes_last_and_what_does_not_apply_is_counted(
    capsys: pytest.CaptureFixture[str], count: int, text: str
) -> None:
    lines = shown(capsys, (*skipped(count), *skipped(1, is_for_time=True)))
    [others] = [line for line in lines if line.startswith("n/a")]
    assert others.split(maxsplit=1)[1] == f"{text}; --json lists them with the reasons"
    [late] = [line for line in lines if line.startswith("not tried")]
    assert late.endswith("candidate 0: reason 0")
    order = ("lost", "not tried", "n/a", "plain loop", "recipe", "search")
    places = [[line.startswith(begin) for line in lines].index(True) for begin in order]
    assert places == sorted(places)
    assert lines[-1].startswith("search") and len(lines) == 9


def test_nothing_is_said_where_all_candidates_apply(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for line in shown(capsys, ()) if line.startswith("not ")]
