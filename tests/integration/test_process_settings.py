"""Settings that a process has only once: made in processes of the test's own."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from flatout.engine.runtime.allocator import why_not_retained
from flatout.schema.tuning import Result

needs_glibc = pytest.mark.skipif(
    why_not_retained() is not None, reason=f"needs glibc: {why_not_retained()}"
)

FAULTS = """
import torch
from flatout.engine.runtime.allocator import allocator_settings, is_retaining, page_faults

def faults():
    before = page_faults()
    # 64 MiB: glibc gives a block of that size back as soon as it is freed.
    torch.ones(16, 1024, 1024).mul(2)
    return page_faults() - before

def told():
    # The heap grows until all has its place in it.
    return min(faults() for _ in range(6)), is_retaining()

print(*told())
with allocator_settings("retain"):
    print(*told())
"""


@needs_glibc
def test_retain_when_large_tensors_come_and_go() -> None:
    [before, meanwhile] = [line.split() for line in python(FAULTS).splitlines()]
    assert int(meanwhile[0]) < 100 < int(before[0])
    assert (before[1], meanwhile[1]) == ("False", "True")


def python(text: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", text], check=False, text=True, timeout=120,
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    # Libraries say there what they like: Triton tells of leaks when a process ends.
    assert done.returncode == 0, done.stderr
    return done.stdout


TRIAL = """
import torch
import flatout
from flatout.engine.tuner.trials import Trials
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.schema.tuning import Candidate, Trial
import msgspec, sys

images = torch.randn(256, 3, 64, 64)
experiment = flatout.Experiment(
    model=lambda: torch.nn.Conv2d(3, 16, 3),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    loss=lambda model, batch: model(batch).square().mean(),
    train_data=lambda: images,
    batch_size=64,
    epochs=1,
)
changes = {"allocator": "retain"}
candidate = Candidate(name="kept", axis="allocator", changes=changes, why="")
trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes=changes)
result = Trials(TuningTask(experiment=experiment)).measured(trial, 0.3)
sys.stdout.write(msgspec.json.encode(result).decode())
"""


@needs_glibc
def test_retain_when_tried_tells_the_page_faults_of_an_update() -> None:
    result = msgspec.json.decode(python(TRIAL), type=Result)
    assert result.problem is None and result.speedup is not None
    assert result.effect is not None and result.effect.endswith("page faults in an update")
