"""What a rank does, looked at without the others; and what two of them tell each other."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec import structs
from support.ranks_runs import run_ranks
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.feed.feed import BatchShard, Slicing
from flatout.engine.feed.iterable_feed import IterableFeed
from flatout.engine.feed.loader_feed import Loading
from flatout.engine.ranks import fsdp
from flatout.engine.ranks.buffer_sync import BufferSync
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.gradient_sync import agreed, stop_number
from flatout.engine.ranks.listen_socket import SOCKET_NAME, listening_socket
from flatout.engine.ranks.model_layout import ModelLayout
from flatout.engine.ranks.process_group import MultiRank, StepFlags, alike_tensors
from flatout.engine.ranks.protocol import SingleRank
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tensors import host_copies
from flatout.engine.training import worker
from flatout.engine.training.api import train_in
from flatout.engine.training.oom_recovery import oom_options_of, relieved_after_kill
from flatout.engine.training.trainer import Trainer, TrainTask
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Choice
from flatout.schema.run_lines import DESERTED, Event, Failed, RecipeSet
from flatout.schema.tuning import TuneRequest
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
CASES = Path(__file__).parents[1] / "cases" / "ranks"


class OfTwo(SingleRank):
    """One of two ranks, whose other one agrees with whatever it does.

    Args:
        act: of the second rank: does what the first would while it tells about something.
    """

    size = 2

    def __init__(self, act: Callable[[], Any] | None = None) -> None:
        self.rank = int(act is not None)
        self.is_first = act is None
        self.share = BatchShard(rank=self.rank, size=2)
        self._act = act

    def broadcast_from_rank0(
        self, make: Callable[[], Any], kind: Any = None, *, about: str = ""
    ) -> Any:
        """See Ranks."""
        if self._act is None:
            return make()
        return self._act() if about else None


class Numbers:
    """An iterable of 50 numbers that knows where it is; at its end it is back at its beginning."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.done < 50:
            self.done += 1
            yield torch.tensor(self.done)
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def stream(rank: int, state: Any = None) -> IterableFeed:
    slicing = Slicing(
        batch_size=8,
        micro_batch_size=8,
        seed=1,
        is_shuffled=False,
        share=BatchShard(rank=rank, size=2),
    )
    loading = Loading(num_workers=0, prefetch=2, pin_memory=False, persistent=False, collate=None)
    feed = IterableFeed(Numbers(), slicing, loading)
    feed.load_state(state)
    return feed


@pytest.mark.parametrize("rank", [0, 1])
def test_stream_with_a_state_goes_on_in_the_midst_of_an_epoch(rank: int) -> None:
    whole = [batch.tolist() for [(batch, _)] in stream(rank).updates(0, 0)]
    begun = stream(rank)
    updates = begun.updates(0, 0)
    for _ in range(3):
        next(updates)
    rest = [batch.tolist() for [(batch, _)] in stream(rank, begun.state()).updates(0, 3)]
    assert len(whole) == 7 and rest == whole[3:]
    # The last update is a short one: after it there is nothing, whatever the source does then.
    for _ in range(4):
        next(updates)
    assert list(stream(rank, begun.state()).updates(0, 7)) == []


def test_what_only_one_rank_can_do_is_refused_when_several_go_on(
    lab: Lab, plain: Plain, tell: Tell
) -> None:
    # The number of threads is fixed: the recipe is not chosen anew because there are two ranks.
    folder, experiment = lab.new(checkpoint_every=1), plain()
    lab.go_on(folder, experiment, stop_after=3)
    [line] = tell.events(folder, RecipeSet)
    captured = structs.replace(line.recipe, capture=Choice(value="step", why="it was faster"))
    events = atomic_files.Lines(folder.events)
    events.append(structs.replace(line, step=3, recipe=captured))
    events.close()
    task = TrainTask(folder, read_run(folder).header.spec, Change(), StopRequest(), ranks=OfTwo())
    with pytest.raises(UsageError, match="cannot be combined with several ranks"):
        train_in(task, lambda: experiment)
    assert len(tell.events(folder, RecipeSet)) == 2


def test_first_weights_are_written_by_the_first_rank_alone(
    lab: Lab, plain: Plain, tmp_path: Path
) -> None:
    given = lab.run(plain(epochs=1)).weights
    folder = lab.new(init=str(tmp_path / "gone.safetensors"))
    spec = read_run(folder).header.spec
    kept = folder.path / "init.safetensors"

    def of(ranks: SingleRank) -> Tensor:
        task = TrainTask(folder, spec, Change(), StopRequest(), ranks=ranks)
        journal = EventLog(folder)
        course = Trainer(task, plain(), journal, None)
        journal.close()
        return next(course._build("cpu", ModelLayout(ranks=ranks)).model.parameters())

    # It reads what is not there before the first one has written it, and writes nothing itself.
    second = OfTwo(lambda: kept.exists() or atomic_files.copy_atomically(given, kept))
    assert os.listdir(kept.parent).count(kept.name) == 0
    assert torch.equal(of(second), of(OfTwo()))
    assert not (tmp_path / "gone.safetensors").exists()


def test_after_a_kill_the_largest_share_is_halved(lab: Lab, plain: Plain) -> None:
    folder = lab.run(plain(epochs=1))
    facts = _Facts()
    recipes = []
    for num_ranks in (1, 4):
        journal = EventLog(folder)
        means = oom_options_of(facts, num_ranks)  # type: ignore[arg-type]
        recipes.append(relieved_after_kill(journal, means, 7))
        journal.close()
        lines = atomic_files.read_lines(folder.events, Event)
        assert isinstance(lines[-1], RecipeSet)
    assert [one.micro_batch_size.value for one in recipes] == [4, 1]


@dataclasses.dataclass
class _Facts:
    batch_size: int = 8
    has_batch_norm: bool = False
    has_own_step: bool = False
    num_blocks: int = 0


def test_no_recipe_is_searched_for_by_several_ranks(lab: Lab, plain: Plain, tell: Tell) -> None:
    folder = lab.new()
    spec = read_run(folder).header.spec
    searching = structs.replace(spec, tuning=TuneRequest(mode="full"))
    task = TrainTask(folder, searching, Change(), StopRequest(), ranks=OfTwo())
    train_in(task, lambda: plain(epochs=1, model=lambda: nn.Linear(6, 3)))
    assert "search-needs-one-rank" in tell.rules(folder)
    assert [one.recipe.precision.origin for one in tell.events(folder, RecipeSet)] == ["default"]


def test_buffers_of_a_rank_without_samples_say_nothing() -> None:
    class Counting(nn.Module):
        mask: Tensor
        place: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
            self.register_buffer("place", torch.tensor([2**60 + 1]))
            self.register_buffer("mean", torch.zeros(1))

    modules = [Counting(), Counting()]
    moving = [BufferSync(one) for one in modules]
    modules[0].mean.fill_(0.25)
    moved = moving[0].moved()
    assert moved == [True, False, True]
    packed = [one.packed(moved, size) for one, size in zip(moving, (2, 0), strict=True)]
    sums = [torch.stack([one[0] for one in packed]).sum(0)]
    for one, module in zip(moving, modules, strict=True):
        one.unpack(moved, sums, 2)
        assert module.mask.tolist() == [0.0, -torch.inf]
        assert module.place.tolist() == [2**60 + 1]
        assert module.mean.tolist() == [0.25]


def test_buffers_of_complex_numbers_are_averaged_in_both_parts() -> None:
    modules = [nn.Module(), nn.Module()]
    for module, value in zip(modules, (1 + 2j, 4 - 1j), strict=True):
        module.register_buffer("mean", torch.full((2,), value, dtype=torch.complex64))
    moving = [BufferSync(one) for one in modules]
    packed = [one.packed([True], size)[0] for one, size in zip(moving, (2, 1), strict=True)]
    moving[0].unpack([True], [packed[0] + packed[1]], 3)
    assert modules[0].get_buffer("mean").tolist() == [2 + 1j, 2 + 1j]


def test_a_bad_limit_is_reported_in_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lab.new()
    for name, value in {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "FLATOUT_RANKS_LIMIT_S": "10m",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert worker.main([str(folder.path), "--ranked"]) == 2
    reported = atomic_files.read_lines(folder.events, Event)[-1]
    assert isinstance(reported, Failed)
    assert reported.finding.problem == "FLATOUT_RANKS_LIMIT_S=10m is not a number of seconds."


@pytest.mark.skipif(os.name == "nt", reason="torch opens the port by itself there")
def test_rank_0_listens_where_the_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    number = listening_socket("127.0.0.1", 0)
    assert number is not None
    with socket.socket(fileno=number) as one:
        assert one.getsockname()[0] == "127.0.0.1"
        with pytest.raises(OSError, match="in use"):
            listening_socket("127.0.0.1", one.getsockname()[1])
    # An address of somebody else's, as behind a router: torch is to find its way.
    assert listening_socket("192.0.2.1", 0) is None
    with socket.create_server(("127.0.0.1", 0)) as given:
        monkeypatch.setenv(SOCKET_NAME, str(given.fileno()))
        assert listening_socket("127.0.0.1", 1) == given.fileno()
        assert SOCKET_NAME not in os.environ


@pytest.mark.parametrize(
    ("reasons", "agreed_on"),
    [
        ([None, None], None),
        ([None, DESERTED], DESERTED),
        (["terminated", DESERTED], "asked to stop"),
    ],
)
def test_ranks_that_are_left_alone_are_not_taken_for_asked(
    reasons: list[str | None], agreed_on: str | None
) -> None:
    assert agreed([StepFlags(stop=stop_number(one)) for one in reasons]).stop == agreed_on


def test_two_ranks_tell_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    path = [str(CASES), str(CASES.parents[1])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]))
    run_ranks(2, [str(CASES / "in_company.py"), str(tmp_path)], tmp_path, 120.0)
    events = atomic_files.read_lines(RunFolder(tmp_path / "lost").events, Event)
    reported = [one.adaptation for one in events if isinstance(one, RecipeSet) and one.adaptation]
    assert reported == [
        OomAdaptation(
            kind="smaller", step=3, before=20, after=10, part="other", is_in_place=False,
            because="rank 1: the GPU cannot be used any more.",
        )
    ]  # fmt: skip
    assert isinstance(events[-1], Failed)
    assert events[-1].finding.rule == "gpu-state-lost"


class Leaving(SingleRank):
    """A rank that reads the run's history as it leaves with an error."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.seen: list[Event] = []

    def leave(self, error: BaseException | None = None) -> None:
        """See Ranks."""
        if error is not None:
            self.seen = atomic_files.read_lines(self._folder.events, Event)


def test_a_failure_is_in_the_run_before_the_other_ranks_are_left(lab: Lab) -> None:
    # To leave may take long: whoever waits for this process may end it meanwhile.
    folder = lab.new()
    ranks = Leaving(folder)
    task = TrainTask(folder, read_run(folder).header.spec, Change(), StopRequest(), ranks=ranks)

    def load() -> Experiment:
        raise UsageError("bad-experiment", "there is none.", fix="write one")

    with pytest.raises(UsageError, match="there is none"):
        train_in(task, load)
    assert [type(line) for line in ranks.seen] == [Failed]


class Wide(nn.Module):
    """A buffer whose four rows are one in memory."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("wide", torch.full((1, 3), value).expand(4, 3))


def test_expanded_buffers_are_averaged_and_copied_as_they_are_in_memory() -> None:
    model = Wide()
    buffers = BufferSync(model)
    [sums] = buffers.packed([True], 2)
    assert len(sums) == 3 and buffers.shapes() == [[1, 3]]
    # Another rank has 5 in it, and as many samples.
    buffers.unpack([True], [sums + 2 * 5.0], 4)
    assert torch.equal(model.wide, torch.full((4, 3), 3.0))
    group: Any = SimpleNamespace(all_gather=lambda own, *_, **__: [own, own])
    [sent] = alike_tensors(group, model)
    assert sent.numel() == 3 and sent.is_contiguous()


def test_a_pass_that_only_fills_up_leaves_expanded_buffers_alone() -> None:
    model, group = Wide(), SimpleNamespace(size=2)
    passes = SyncedPasses(group)  # type: ignore[arg-type]
    with passes.of(0, model.buffers()):
        model.wide[:1].add_(1.0)
    assert torch.equal(model.wide, torch.ones(4, 3))


def test_a_whole_state_comes_to_the_cpu_as_a_checkpoint_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transfers: list[int] = []

    def fill(pairs: list[tuple[Tensor, Tensor]]) -> None:
        transfers.append(len(pairs))
        for copy, tensor in pairs:
            copy.copy_(tensor)

    monkeypatch.setattr(host_copies, "fill_on_host", fill)
    sharding = object.__new__(fsdp.FullySharded)
    sharding._group = MultiRank(Connection(place_of_two()))
    tied, turned = torch.arange(6.0).view(2, 3), torch.ones(2, 3).t()
    small = [torch.full((3,), float(number)) for number in range(4)]
    whole = {"weights": [tied, tied, *small], "turned": turned}
    state = sharding.whole(whole, is_for_all=True)
    # As one, however many there are: on a GPU, each transfer has an event and pinned memory.
    assert transfers == [5] and state["weights"][0] is state["weights"][1]
    assert torch.equal(state["weights"][0], tied) and state["turned"].stride() == turned.stride()
    assert all(map(torch.equal, state["weights"][2:], small))


def test_copies_that_fill_a_buffer_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "_BUFFER_BYTES", 8)
    copies = host_copies.HostCopies()
    first, second = copies.of(torch.ones(2)), copies.of(torch.full((1,), 5.0))
    # The first one's device has its memory back.
    assert torch.equal(first, torch.ones(2)) and copies._num_bytes == 4
    copies.fill()
    assert torch.equal(second, torch.full((1,), 5.0))


def place_of_two() -> RankEnv:
    return RankEnv(rank=0, size=2, local_rank=0, host="127.0.0.1", port=0, limit_s=1.0)
