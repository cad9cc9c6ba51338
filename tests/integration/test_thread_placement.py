"""Each of OpenMP's threads has a CPU of its own while a step is computed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import torch

from flatout.engine.runtime.cpu_affinity import cpus_by_thread
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.system import thread_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has CPUs for each thread")
CPU = torch.device("cpu")


def num_cpus() -> int:
    return len(os.sched_getaffinity(0))


def parallel_step() -> None:
    matrix = torch.ones(400, 400)
    for _ in range(20):
        matrix = (matrix @ matrix).clamp(max=1.0)


def placed(step=parallel_step) -> ThreadPlacement:
    placement = ThreadPlacement(CPU)
    for _ in range(2000):
        with placement:
            step()
        if placement._others:
            break
    return placement


@pytest.fixture(autouse=True)
def as_many_threads_as_cpus():
    if num_cpus() < 2:
        pytest.skip("one CPU")
    before = torch.get_num_threads()
    torch.set_num_threads(num_cpus())
    yield
    torch.set_num_threads(before)


def test_threads_have_a_cpu_each_inside_and_all_outside():
    everywhere = os.sched_getaffinity(0)
    placement = placed()
    with placement:
        inside = cpus_by_thread()
        own = os.sched_getaffinity(0)
    assert len(own) == 1
    others = [inside[thread] for thread in placement._others]
    assert set.union(set(own), *map(set, others)) == everywhere
    assert all(len(cpus) == 1 for cpus in others)
    assert os.sched_getaffinity(0) == everywhere
    placement.release()
    assert all(cpus == everywhere for cpus in cpus_by_thread().values())


def test_what_a_step_is_followed_by_may_run_anywhere():
    placement = placed()
    with placement:
        parallel_step()
    words = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    assert int(subprocess.check_output(words)) == num_cpus()
    placement.release()


def test_nothing_is_placed_where_a_step_uses_one_thread():
    placement = placed(lambda: sum(range(20_000)))
    with placement:
        assert len(os.sched_getaffinity(0)) == num_cpus()


def test_nothing_is_placed_with_fewer_threads_than_cpus():
    torch.set_num_threads(num_cpus() - 1)
    assert_not_placed(ThreadPlacement(CPU))


def test_nothing_is_placed_once_there_are_fewer_threads():
    placement = placed()
    torch.set_num_threads(1)
    with placement:
        assert len(os.sched_getaffinity(0)) == num_cpus()
    assert all(len(cpus) == num_cpus() for cpus in cpus_by_thread().values())


def test_nothing_is_placed_for_a_gpu():
    assert_not_placed(ThreadPlacement(torch.device("cuda")))


def assert_not_placed(placement: ThreadPlacement) -> None:
    for _ in range(30):
        with placement:
            parallel_step()
            assert len(os.sched_getaffinity(0)) == num_cpus()


def test_another_placement_knows_the_others_at_once():
    first = placed()
    first.release()
    second = ThreadPlacement(CPU)
    with second:
        assert len(os.sched_getaffinity(0)) == 1
    second.release()


def test_others_that_have_ended_are_found_again():
    placement = placed()
    with placement:
        parallel_step()
    [gone, *_] = placement._others
    # As after `torch.set_num_threads`: the number belongs to no thread any more.
    placement._others = [2**22 - 1 if thread == gone else thread for thread in placement._others]
    with placement:
        assert len(os.sched_getaffinity(0)) == num_cpus()
    for _ in range(2000):
        with placement:
            parallel_step()
        if placement._others:
            break
    assert gone in placement._others
    placement.release()


def test_a_run_trains_with_threads_placed(tmp_path, monkeypatch):
    import flatout

    seen: list[int] = []
    when_generating: list[int] = []

    def loss(model, batch):
        seen.append(len(os.sched_getaffinity(0)))
        return model(batch[0]).square().mean()

    def generate(model):
        when_generating.append(len(os.sched_getaffinity(0)))
        return ["a text"]

    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    data = torch.ones(4096, 512)
    flatout.train(
        flatout.Experiment(
            model=lambda: torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
            loss=loss,
            generate=generate,
            train_data=lambda: (data,),
            batch_size=1024,
            epochs=25,
        ),
    )
    assert seen[-1] == when_generating[-1] == 1
    assert len(os.sched_getaffinity(0)) == num_cpus()


EXPERIMENT = """
import os
import torch
import flatout

def predict(model, batch):
    with open(os.environ["SEEN"], "a") as file:
        print(len(os.sched_getaffinity(0)), file=file)
    return model(batch[0])

def experiment() -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: torch.nn.Linear(64, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        predict=predict,
        predict_data=lambda text: (torch.ones(8, 64),),
        train_data=lambda: (torch.ones(64, 64),),
        batch_size=32,
        epochs=1,
    )
"""


def test_the_only_batch_of_a_prediction_is_computed_with_threads_placed(tmp_path, monkeypatch):
    import flatout
    from flatout.engine.predict.worker import ReplyWriter, handle
    from flatout.engine.session.load_experiment import load_experiment
    from flatout.schema.experiment_spec import ExperimentSpec
    from flatout.schema.predict_protocol import PredictJob
    from flatout.system.json_process import JsonLines

    everywhere = os.sched_getaffinity(0)
    file, seen = tmp_path / "counting.py", tmp_path / "seen"
    file.write_text(EXPERIMENT)
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setenv("SEEN", str(seen))
    experiment = load_experiment(ExperimentSpec(name="counting", file=str(file)))
    # A model this small is trained with one.
    use = {"num_threads": num_cpus()}
    trained = flatout.train(experiment, name="counting", use=use, is_quiet=True)
    # Earlier tests have found and named them.
    for thread, name in thread_times.names_by_thread().items():
        if name.startswith("omp "):
            thread_times.rename(thread, "python")
    handle(
        PredictJob(verb="predict", folder=trained.run.folder, experiment=str(file), inputs=("a",)),
        ReplyWriter(JsonLines(io.BytesIO())),
    )
    assert seen.read_text().split() == ["1"]
    # In a notebook, nothing stays placed.
    predictor = flatout.load("counting", experiment=file)
    predictor.place_threads()
    predictor.predict((torch.ones(8, 64),))
    assert seen.read_text().split()[-1] == "1"
    assert all(cpus == everywhere for cpus in cpus_by_thread().values())


def test_threads_that_were_moved_are_placed_again():
    everywhere = os.sched_getaffinity(0)
    placement = placed()
    with placement:
        parallel_step()
    for thread in placement._others:
        os.sched_setaffinity(thread, everywhere)
    with placement:
        inside = cpus_by_thread()
        assert all(len(inside[thread]) == 1 for thread in placement._others)
    placement.release()
