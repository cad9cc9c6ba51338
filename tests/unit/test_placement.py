"""Where ranks go: what `--on` means, what is refused before the start, what their ends mean."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.engine import launch
from flatout.engine.launch.job import Lifeline, RankJob, rank_variables, thread_variables
from flatout.errors import UsageError
from flatout.schema.framework import Framework
from flatout.schema.machine import Cpu, Gpu, Host, Machine, Memory
from flatout.schema.placement import (
    LAUNCHERS,
    RANK_DIED,
    Placement,
    ending_code,
    num_gpus_for,
    parse_placement,
    visible_gpu,
)
from flatout.schema.train_request import TrainRequest

ONE_GPU = Machine(
    read_at="", host=Host(os="linux"), cpu=Cpu(), memory=Memory(), gpus=(Gpu(index=0, name="RTX"),),
    frameworks=(Framework(name="torch", version="2.13.0", build="cu130"),),
)  # fmt: skip


def test_parse_placement() -> None:
    assert parse_placement(" local:4 ") == Placement(launcher="local", num_ranks=4)
    assert str(parse_placement("torchrun:2")) == "torchrun:2"


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_is_parsed_as_itself_and_has_a_module(name: str) -> None:
    assert parse_placement(f"{name}:2") == Placement(launcher=name, num_ranks=2)
    module = Path(launch.__file__).with_name(f"{name}.py")
    assert "def launch(job: RankJob) -> int:" in module.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lokal:2", "did you mean `local`"),
        ("", "local"),
        ("local", "--on local:2"),
        ("local:0", "--on local:2"),
        ("local:-1", "--on local:2"),
        ("torchrun:9999", "--on torchrun:2"),
        ("local:two", "--on local:2"),
    ],
)
def test_parse_placement_when_it_is_none(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_placement(text)
    assert caught.value.rule == "bad-placement"
    assert said in caught.value.fix


@pytest.mark.parametrize(
    ("chosen", "num"), [(None, 2), ("0", 1), ("", 0), ("-1", 0), ("1,0", 2), ("0,1,2,3", 2)]
)
def test_num_gpus_when_some_are_hidden(chosen: str | None, num: int) -> None:
    two = [Gpu(index=index, name="RTX") for index in (0, 1)]
    machine = Machine(
        read_at="", host=Host(os="linux"), cpu=Cpu(), memory=Memory(), gpus=tuple(two)
    )
    assert num_gpus_for(machine, chosen) == num


def test_check_when_ranks_would_share_a_gpu() -> None:
    pair = Placement(launcher="local", num_ranks=2)
    with pytest.raises(UsageError) as caught:
        pair.check(num_gpus_for(ONE_GPU, None), "auto")
    assert caught.value.rule == "ranks-share-a-gpu"
    assert "NCCL" in str(caught.value.because)
    assert caught.value.fix == "use --on local:1, or train on the CPU: --device cpu"
    with pytest.raises(UsageError):
        pair.check(1, "cuda")
    with pytest.raises(UsageError) as caught:
        pair.check(2, "cuda:1")
    assert caught.value.rule == "ranks-do-not-fit"


def test_check_when_there_is_room() -> None:
    Placement(launcher="local", num_ranks=1).check(1, "cuda:0")
    pair = Placement(launcher="local", num_ranks=2)
    pair.check(1, "cpu")
    pair.check(0, "auto")
    pair.check(2, "cuda")


def test_request_when_ranks_are_to_search() -> None:
    assert TrainRequest(experiment="mlp", on="local:2", tune="auto").tune_request.mode == "off"
    with pytest.raises(UsageError) as caught:
        TrainRequest(experiment="mlp", on="local:2", tune="full").check()
    assert caught.value.rule == "search-needs-one-rank"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ({0: 0, 1: 0}, 0),
        ({0: 1, 1: 1}, 1),
        ({0: 2, 1: -9}, 2),
        ({0: 3, 1: 0}, 3),
        # Rank 0 has told that another is lost: what it told is read, whatever the code.
        ({0: 1, 1: -9}, 1),
        ({0: -9, 1: 1}, RANK_DIED),
        ({1: -9}, RANK_DIED),
        ({0: 0, 1: -9}, RANK_DIED),
        ({0: 130, 1: 0}, RANK_DIED),
    ],
)
def test_ending_code(codes: dict[int, int], code: int) -> None:
    assert ending_code(codes) == code


def test_variables_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    own = rank_variables(3, 4, local_rank=1, num_local=2, rendezvous=("head", 5000))
    assert own == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "head", "MASTER_PORT": "5000", **thread_variables(2),
    }  # fmt: skip
    both, each = (int(thread_variables(num)["OMP_NUM_THREADS"]) for num in (1, 2))
    assert each == max(1, both // 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    own = rank_variables(0, 1, local_rank=0, num_local=1, rendezvous=("head", 5000))
    assert "OMP_NUM_THREADS" not in own


LATE = """
import os, sys, threading, time
from flatout.engine import launch
from flatout.engine.launch.job import Lifeline
# Whatever runs in another thread comes late.
threading.settrace(lambda *_: time.sleep(0.2))
with Lifeline(is_attached=True) as lifeline:
    os.dup2(lifeline.reading, 0)
    print("ready", flush=True)
    os.read(lifeline.reading, 1)
"""


def test_lifeline_ends_with_its_own_input_whatever_is_put_in_its_place() -> None:
    src = str(Path(__file__).resolve().parents[2] / "src")
    process = subprocess.Popen(
        [sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": src},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    process.stdin.close()
    try:
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_command_of_a_rank(tmp_path: Path) -> None:
    lifeline = Lifeline(is_attached=False)
    command = RankJob(folder=tmp_path, num_ranks=2, change="{}", lifeline=lifeline).command()
    lifeline.cut()
    assert command[0] == sys.executable
    assert command[-5:] == [str(tmp_path), "--ranked", "--attached", "--change", "{}"]


def test_visible_gpu_when_cuda_counts_in_its_own_order() -> None:
    gpus = (Gpu(index=0, name="RTX 3060", uuid="GPU-aa"), Gpu(index=1, name="H200", uuid="GPU-bb"))
    machine = Machine(gpus=gpus)
    assert visible_gpu(machine, 0, None) == gpus[0]
    assert visible_gpu(machine, 0, None, is_bus_order=False) is None
    assert visible_gpu(machine, 0, "1", is_bus_order=False) is None
    assert visible_gpu(machine, 0, "GPU-b", is_bus_order=False) == gpus[1]
    assert visible_gpu(Machine(gpus=gpus[:1]), 0, None, is_bus_order=False) == gpus[0]
