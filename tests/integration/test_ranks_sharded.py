"""A model in parts, norms over all ranks, and an experiment's own step give what one rank gives."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support.forked_ranks import ForkedRanks
from torch import Tensor, nn

from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.ranks.fsdp import check_can_be_sharded
from flatout.engine.runtime.allocator import why_not_retained
from flatout.errors import UsageError
from flatout.schema.run_lines import EpochEnded, Event, Failed, Generated, Metric, Validated
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases" / "ranks"
CAMPAIGNS = TESTS.parent / "campaigns"
LIMIT_S = 300.0
Once = Callable[[str, Callable[[Path], None]], Path]
NAMES = (
    "deep", "accumulated", "sentences", "skipping", "norms", "spread_norms", "own_step",
    # An optimizer each.
    "adam", "nadam", "radam", "adamax", "adagrad", "adadelta", "rmsprop",
    "whole", "whole_sentences",
)  # fmt: skip
# The second rank has no sample of the third batch, and calls the loss for it only with parts.
LAST_SAVED = {"short_whole": 6, "short_parts": 4, "killed_whole": 6, "killed_parts": 4}
# Also exchanged without agreement.
PLAIN = ("deep", "accumulated", "sentences", "norms", "spread_norms", "whole", "whole_sentences")


def _set_paths(setenv: Callable[[str, str], None], state: Path) -> None:
    own = [str(CASES), str(TESTS), os.environ.get("PYTHONPATH", "")]
    setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
    setenv("FLATOUT_STATE", str(state))


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_paths(monkeypatch.setenv, tmp_path / "state")


def trained(forked_ranks: ForkedRanks, folder: Path, num_ranks: int, *words: str) -> None:
    command = [str(CASES / "train_all.py"), str(folder), *words]
    forked_ranks.run(num_ranks, command, folder, LIMIT_S)


@pytest.fixture(scope="module")
def by_ranks(once: Once, forked_ranks: ForkedRanks) -> dict[int, Path]:
    """All of them, trained on 1 and on 2 ranks."""

    def train_all(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for num_ranks in (1, 2):
                place = folder / str(num_ranks)
                _set_paths(patch.setenv, place / "state")
                trained(forked_ranks, place, num_ranks, "spread", "accumulated")

    folder = once("spread", train_all)
    return {num_ranks: folder / str(num_ranks) for num_ranks in (1, 2)}


def curve(run: Path) -> list[float]:
    """Losses in the order in which they were told: of epochs, by name too, and of validations."""
    found: list[float | None] = []
    for line in atomic_files.read_lines(RunFolder(run).metrics, Metric):
        if isinstance(line, EpochEnded):
            found += [line.loss, *(line.losses or {}).values()]
        elif isinstance(line, Validated):
            found.append(line.metrics["loss"])
    assert None not in found
    return [one for one in found if one is not None]


def weights(run: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(RunFolder(run).weights)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_give_what_one_gives(by_ranks: dict[int, Path], name: str) -> None:
    one, two = (curve(by_ranks[n] / name) for n in (1, 2))
    assert len(one) >= 4
    assert two == pytest.approx(one, rel=1e-9, abs=1e-9)
    known, found = (weights(by_ranks[n] / name) for n in (1, 2))
    assert found.keys() == known.keys()
    for key, value in known.items():
        assert found[key].shape == value.shape
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-9, atol=1e-9), key


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_exchange_computes_the_same_bit_for_bit(
    by_ranks: dict[int, Path], name: str
) -> None:
    agreed, plain = by_ranks[2] / name, by_ranks[2] / f"plain_{name}"
    assert curve(plain) == curve(agreed)
    known, found = weights(agreed), weights(plain)
    assert found.keys() == known.keys()
    assert [key for key, value in known.items() if not torch.equal(found[key], value)] == []
    recipe = read_run(RunFolder(plain)).recipe
    assert recipe is not None and recipe.exchange.value == "plain"


@pytest.mark.parametrize("name", ["short_whole", "short_parts"])
def test_want_of_memory_ends_a_plain_exchange_in_words(
    tmp_path: Path, forked_ranks: ForkedRanks, name: str
) -> None:
    with pytest.raises(RuntimeError, match="not enough memory for this step on this rank"):
        trained(forked_ranks, tmp_path, 2, "new", name)
    run = read_run(RunFolder(tmp_path / name))
    assert run.failure is not None and run.failure.rule == "out-of-memory"
    assert run.failure.problem.startswith("rank 1: ")
    assert run.checkpoint_step == LAST_SAVED[name] and run.adaptations == ()


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
@pytest.mark.parametrize("name", ["killed_whole", "killed_parts"])
def test_a_killed_rank_is_named_with_a_plain_exchange(
    tmp_path: Path, forked_ranks: ForkedRanks, name: str
) -> None:
    with pytest.raises(RuntimeError, match="the ranks ended with"):
        trained(forked_ranks, tmp_path, 2, "new", name)
    run = read_run(RunFolder(tmp_path / name))
    assert run.failure is not None and run.failure.rule == "rank-lost"
    assert "rank 1 of 2" in run.failure.problem
    assert run.checkpoint_step == LAST_SAVED[name]


def test_generate_sees_the_whole_model(by_ranks: dict[int, Path]) -> None:
    one, two = (
        [
            line.texts
            for line in atomic_files.read_lines(RunFolder(by_ranks[n] / "deep").metrics, Metric)
            if isinstance(line, Generated)
        ]
        for n in (1, 2)
    )
    assert len(one) > 3
    assert one == two


def test_findings_of_one_and_of_several(by_ranks: dict[int, Path]) -> None:
    rules = {
        n: [one.rule for one in read_run(RunFolder(by_ranks[n] / "spread_norms")).findings]
        for n in (1, 2)
    }
    assert rules == {1: ["setting-without-effect"] * 2, 2: []}
    recipe = read_run(RunFolder(by_ranks[2] / "deep")).recipe
    assert recipe is not None
    assert recipe.allocator.value == ("system" if why_not_retained() else "retain")
    assert recipe.sharding.value == "full"


@pytest.fixture(scope="module")
def on_three(once: Once, by_ranks: dict[int, Path], forked_ranks: ForkedRanks) -> Path:
    """What two ranks have begun, taken up by three; then ranks that do not do the same."""

    def take_up(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            _set_paths(patch.setenv, folder / "state")
            with pytest.raises(RuntimeError, match="ranks diverged"):
                trained(forked_ranks, by_ranks[2], 3, "5", "accumulated", "unlike")

    once("spread-on-three", take_up)
    return by_ranks[2]


def test_resume_of_parts_at_another_number_of_ranks(
    by_ranks: dict[int, Path], on_three: Path
) -> None:
    one, moved = (
        [line.metrics["loss"] for line in atomic_files.read_lines(RunFolder(run).metrics, Metric)
         if isinstance(line, Validated)]
        for run in (by_ranks[1] / "accumulated", on_three / "moved")
    )  # fmt: skip
    assert len(moved) == 15
    assert moved == pytest.approx(one, rel=1e-9, abs=1e-9)
    run = read_run(RunFolder(on_three / "moved"))
    assert run.started is not None and run.started.num_ranks == 3


def test_ranks_that_call_other_blocks_say_so(on_three: Path) -> None:
    failed = atomic_files.read_lines(RunFolder(on_three / "unlike").events, Event)[-1]
    assert isinstance(failed, Failed) and failed.finding.rule == "ranks-do-not-fit"


def test_memory_that_runs_out_on_a_rank_with_parts(
    tmp_path: Path, forked_ranks: ForkedRanks
) -> None:
    command = [str(CAMPAIGNS / "oom_ranks.py"), "--as-rank", str(tmp_path), "--sharding", "full"]
    forked_ranks.run(2, [*command, "--trials", "5", "--seed", "3"], tmp_path, LIMIT_S)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert [row for row in rows if row["problem"]] == []
    assert all(row["is_same_on_all"] and row["is_close"] for row in rows)
    short = [row for row in rows if row["failed"]]
    assert len(short) > 2
    # All of them went back to the last checkpoint, or wrote one without a copy of it; the run's
    # history says which.
    went_back = [row for row in short if row["num_adaptations"]]
    assert went_back and not any(row["is_in_place"] for row in went_back)
    assert all(row["num_adaptations"] or row["num_uncopied"] for row in short)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 4).t())


# Of newer versions of torch.
MUON = getattr(torch.optim, "Muon", torch.optim.Adafactor)


@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        (Scaled(), torch.optim.SGD, "`scale` has no dimension"),
        (Strided(), torch.optim.SGD, "`weight` is not contiguous"),
        (nn.Linear(2, 2), torch.optim.Adafactor, "Adafactor may need whole weights"),
        (nn.Linear(2, 2, bias=False), MUON, f"{MUON.__name__} may need whole weights"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()), torch.optim.SGD, "several dtypes"),
    ],
)
def test_what_cannot_be_spread_is_refused(
    model: nn.Module, optimizer: type[torch.optim.Optimizer], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_can_be_sharded(model, Optimizers(optimizer(model.parameters(), lr=0.1)))
    assert caught.value.rule == "ranks-do-not-fit"
    assert said in str(caught.value.because)
