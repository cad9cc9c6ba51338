"""The steps that prove an environment: what must come out, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import flatout
from flatout.errors import RunFailed
from flatout.setup.env.smoke_test import EXPECTED, STEPS, judge, problem


def losses_by_hand() -> list[float]:
    """The same steps in double precision, with gradients written out."""
    np = pytest.importorskip("numpy")
    given = problem("cpu")
    images = np.array(given["images"])
    labels = np.array(given["labels"])
    kernel, matrix = np.array(given["kernel"]), np.array(given["matrix"])
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    rows = np.arange(len(labels))
    found = []
    for _ in range(STEPS + 1):
        maps = np.tanh(np.einsum("nijab,abc->nijc", windows, kernel))
        flat = maps.reshape(len(labels), -1)
        logits = flat @ matrix
        chances = np.exp(logits - logits.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        found.append(float(-np.log(chances[rows, labels]).mean()))
        error = chances.copy()
        error[rows, labels] -= 1
        error /= len(labels)
        back = (error @ matrix.T).reshape(maps.shape) * (1 - maps**2)
        matrix = matrix - given["lr"] * flat.T @ error
        kernel = kernel - given["lr"] * np.einsum("nijab,nijc->abc", windows, back)
    return found


def reported(**values: object) -> str:
    return "something printed before\n" + json.dumps({"version": "1.0", **values})


def test_expected_losses_are_those_of_the_problem() -> None:
    assert losses_by_hand() == pytest.approx(EXPECTED, rel=1e-9)
    # A wrong gradient must be seen: the loss has to move by far more than what is tolerated.
    assert EXPECTED[-1] < 0.9 * EXPECTED[0]


def test_judge_when_right_on_the_cpu() -> None:
    proof = judge(reported(cpu=EXPECTED), "cpu", "now")
    assert (proof.device, proof.deviation) == ("cpu", 0.0)


def test_judge_when_right_on_the_gpu_within_tf32() -> None:
    rounded = [loss * 1.002 for loss in EXPECTED]
    proof = judge(reported(cpu=EXPECTED, gpu=rounded, device_name="RTX 3060"), "gpu", "now")
    assert proof.device_name == "RTX 3060"
    assert proof.deviation == pytest.approx(0.002)


@pytest.mark.parametrize(
    "values",
    [
        {"cpu": [EXPECTED[0]] * 4},
        {"cpu": [*EXPECTED[:-1], math.nan]},
        {"cpu": EXPECTED, "gpu": [EXPECTED[0]] * 4},
        {"cpu": EXPECTED, "gpu": [0.0] * 4},
        {"cpu": EXPECTED},
    ],
)
def test_judge_when_wrong(values: dict[str, object]) -> None:
    text = reported(**values)
    with pytest.raises(RunFailed) as caught:
        judge(text, "gpu" if "gpu" in values or len(values) == 1 else "cpu", "now")
    assert caught.value.rule == "wrong-result"


SINGLE = "PaddlePaddle works well on 1 GPU."


@pytest.mark.parametrize(
    ("printed", "error", "checks"),
    [
        ([SINGLE, "PaddlePaddle works well on 2 GPUs.", "Let's start"], None,
         [SINGLE, "PaddlePaddle works well on 2 GPUs."]),
        ([SINGLE, "ONLY for single GPU!"], RuntimeError("ncclInternalError"),
         [SINGLE, "ONLY for single GPU!", "several devices together: ncclInternalError"]),
        # Older ones only say so.
        ([SINGLE, "ONLY for single GPU!"], None, [SINGLE, "ONLY for single GPU!"]),
        (["Running verify PaddlePaddle program ..."], RuntimeError("no kernel image"), None),
    ],
)  # fmt: skip
def test_paddles_own_check_fails_where_no_device_works(
    printed: list[str],
    error: Exception | None,
    checks: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """How it prints and raises: PaddlePaddle/Paddle, python/paddle/utils/install_check.py."""

    def run_check() -> None:
        print("\n".join(printed))
        if error is not None:
            raise error

    paddle, nn = ModuleType("paddle"), ModuleType("paddle.nn")
    paddle.utils = SimpleNamespace(run_check=run_check)  # type: ignore[attr-defined]
    nn.functional = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    monkeypatch.setitem(sys.modules, "paddle.nn", nn)
    file = Path(flatout.__file__).parent / "engine" / "smoke_tests" / "paddle_steps.py"
    spec = spec_from_file_location("paddle_steps", file)
    assert spec and spec.loader
    steps = module_from_spec(spec)
    spec.loader.exec_module(steps)
    if checks is None:
        with pytest.raises(RuntimeError, match="no kernel image"):
            steps.own_check()
    else:
        assert steps.own_check() == checks
    # What it prints must not stand where the answer is read.
    assert capsys.readouterr().out == ""


def test_judge_keeps_what_the_framework_says_of_itself() -> None:
    assert judge(reported(cpu=EXPECTED, checks=[SINGLE]), "cpu", "now").checks == (SINGLE,)
    assert judge(reported(cpu=EXPECTED), "cpu", "now").checks == ()
