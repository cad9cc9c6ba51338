"""The parameters that a sweep proposes, what its journal keeps of the results, and its pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

import msgspec
import pytest

from flatout.schema.experiment_spec import Value
from flatout.schema.run_lines import Validated
from flatout.schema.sweep import Choices, Range, SweepHeader, SweepTrial
from flatout.schema.train_request import TrainRequest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs the package optuna"
)
HEADER = SweepHeader(
    id="s", created_at=0.0, flatout_version="0", training=TrainRequest(experiment="digits"),
    sha256=None, num_trials=30, sampler="tpe", pruner="none", metric="loss", direction="minimize",
    space={
        "lr": Range(low=1e-4, high=1e-1, is_log=True),
        "width": Range(low=8, high=64, step=8, is_int=True),
        "act": Choices(values=("relu", "gelu")),
    },
)  # fmt: skip


def chosen(number: int, parameters: dict[str, Value]) -> SweepTrial:
    """A trial that has not started."""
    return SweepTrial(at=0.0, trial=number, run=HEADER.run_id(number), parameters=parameters)


def ended(one: SweepTrial, value: float | None = None) -> SweepTrial:
    """A trial that has finished; by default with a loss that depends on its learning rate alone."""
    lr = one.parameters["lr"]
    assert isinstance(lr, float)
    value = abs(lr - 0.01) if value is None else value
    return msgspec.structs.replace(one, status="finished", value=value, reports=(value,))


def test_proposals_are_the_same_when_built_again_for_each_trial() -> None:
    from flatout.runs.sweep.proposals import Proposals

    trials: list[SweepTrial] = []
    once = Proposals(HEADER, ())
    for number in range(1, 16):
        again = Proposals(HEADER, trials)
        parameters = once.ask(number)
        assert again.ask(number) == parameters
        trials.append(once.tell(ended(chosen(number, parameters))))
    assert again.importances() == {} or max(again.importances().values()) <= 1


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_search_goes_where_the_metric_is_better(direction: str) -> None:
    from flatout.runs.sweep.proposals import Proposals

    # As a sweep starts: its metric is known once the first trial has its parameters.
    known = msgspec.structs.replace(HEADER, metric="score", direction=direction)
    proposals = Proposals(msgspec.structs.replace(known, metric=None, direction=None), ())
    trials: list[SweepTrial] = []
    for number in range(1, 41):
        one = chosen(number, proposals.ask(number))
        proposals.header = known
        width = one.parameters["width"]
        assert isinstance(width, int)
        trials.append(proposals.tell(ended(one, float(width))))
    again = Proposals(known, trials)
    widths = [int(again.ask(number)["width"] or 0) for number in range(41, 46)]
    # The sampler still tries other places now and then.
    assert median(widths) < 32 if direction == "minimize" else median(widths) > 40


def test_trial_without_a_finite_value_has_failed(tmp_path: Path) -> None:
    from flatout.runs.sweep.journal import SweepJournal
    from flatout.system.store.sweep_folder import SweepFolder, read_trials

    folder = SweepFolder(tmp_path)
    journal = SweepJournal(folder, HEADER)
    journal.parameters(1)
    line = Validated(at=0.0, step=1, epoch=0, metrics={"loss": None}, is_best=False)
    assert not journal.report(1, line)
    journal.record(1, "finished", None)
    journal.close()
    (one,) = read_trials(folder).values()
    assert (one.status, one.value, one.reports) == ("failed", None, (None,))
    assert one.finding is not None and one.finding.rule == "nonfinite-loss"


def test_parameter_that_decides_is_the_most_important() -> None:
    from flatout.runs.sweep.proposals import Proposals

    header = msgspec.structs.replace(HEADER, sampler="random")
    proposals = Proposals(header, ())
    assert proposals.importances() == {}
    for number in range(1, 31):
        proposals.tell(ended(chosen(number, proposals.ask(number))))
    shares = proposals.importances()
    assert next(iter(shares)) == "lr" and sum(shares.values()) == pytest.approx(1)


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs the package matplotlib"
)
def test_sweep_is_drawn(tmp_path: Path) -> None:
    from flatout.monitor.sweep_plots import draw_sweep
    from flatout.runs.sweep import result
    from flatout.runs.sweep.proposals import Proposals
    from flatout.system.store.sweep_folder import SweepFolder

    proposals = Proposals(HEADER, ())
    trials = [
        proposals.tell(ended(chosen(number, proposals.ask(number)))) for number in range(1, 9)
    ]
    sweep = result.sweep_of(SweepFolder(tmp_path), HEADER, trials)
    sweep = msgspec.structs.replace(sweep, importances=proposals.importances())
    drawn = draw_sweep(sweep)
    assert [path.name for path in drawn] == ["importances.png", "parallel.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)
