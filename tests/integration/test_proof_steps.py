"""The program that proves an environment for torch, in this one."""

from __future__ import annotations

import sys

import pytest

from flatout.errors import RunFailed
from flatout.setup.env.smoke_test import judge, problem
from flatout.setup.packages.smoke_test_runner import train_steps


def test_torch_steps_give_the_right_losses() -> None:
    proof = judge(train_steps(sys.executable, "torch", problem("cpu"), {}), "cpu", "now")
    assert proof.deviation < 1e-5


def test_torch_steps_when_there_is_no_gpu() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "7"}
    with pytest.raises(RunFailed) as caught:
        train_steps(sys.executable, "torch", problem("gpu"), hidden)
    assert caught.value.rule == "training-step-failed"
