"""What other programs take of the CPUs: measured, and told where it matters."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
import psutil
import torch

import flatout
from flatout.engine.session.session import build
from flatout.engine.training.run_checks import busy_cpus_finding
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.tuning import Load
from flatout.system.load import LoadWatch

# Starts a loop of two seconds and ends: the loop is nobody's child here.
STARTER = """
import subprocess, sys
loop = "import time; end = time.time() + 2\\nwhile time.time() < end: pass"
subprocess.Popen([sys.executable, "-c", loop])
"""


def test_too_short_a_time_tells_nothing() -> None:
    assert LoadWatch().load() is None


def test_work_of_this_process_and_of_what_it_starts_is_not_that_of_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process, begin_s = psutil.Process(child.pid), time.perf_counter()
        watch = LoadWatch()
        before_s = process.cpu_times().user
        while time.perf_counter() < begin_s + 1.0:
            pass
        # Read within the watch's time and divided by a longer one: never more than the true share.
        spent_s = process.cpu_times().user - before_s
        load = watch.load()
        own = spent_s / (time.perf_counter() - begin_s)
    finally:
        child.kill()
        child.wait()
    assert load is not None and load.num_cpus == psutil.cpu_count()
    assert load.other_cpus <= load.num_cpus - own + 0.1


def test_work_of_a_program_that_this_process_has_not_started_is_that_of_others() -> None:
    subprocess.run([sys.executable, "-c", STARTER], check=True)
    watch = LoadWatch()
    time.sleep(1.0)
    load = watch.load()
    # However busy the machine is: this process has slept, so all work was that of others.
    assert load is not None and load.other_cpus > 0.3 and load.is_busy


def recipe(num_threads: int, origin: str = "default") -> Recipe:
    experiment = flatout.Experiment(
        model=lambda: torch.nn.Linear(4, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        train_data=lambda: (torch.ones(64, 4),),
        batch_size=32,
        epochs=1,
    )
    found = build(experiment, 0, "cpu").recipe({})
    threads: Choice[int] = msgspec.convert(
        {"value": num_threads, "why": "", "origin": origin}, Choice[int]
    )
    return msgspec.structs.replace(found, num_threads=threads)


def test_threads_whose_cpus_others_use_are_reported() -> None:
    busy = Load(other_cpus=1.2, num_cpus=2)
    [found] = busy_cpus_finding(recipe(2), busy)
    assert found.rule == "cpus-in-use" and "1.2 of 2 CPUs" in found.problem
    assert found.fixes[0].text.endswith("--use num_threads=1")


def test_threads_that_have_cpus_of_their_own_or_were_asked_for_are_not_reported() -> None:
    busy = Load(other_cpus=1.2, num_cpus=2)
    assert busy_cpus_finding(recipe(1), busy) == []
    assert busy_cpus_finding(recipe(2, "yours"), busy) == []
    assert busy_cpus_finding(recipe(2), Load(other_cpus=0.1, num_cpus=2)) == []
    assert busy_cpus_finding(recipe(2), Load(other_cpus=3.0, num_cpus=16)) == []
    assert busy_cpus_finding(recipe(2), None) == []
