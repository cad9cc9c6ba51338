"""The steps that prove an environment: what must come out, and what is refused."""

from __future__ import annotations

import json
import math

import pytest

from flatout.errors import RunFailed
from flatout.setup.proving import EXPECTED, STEPS, judge, problem


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


def told(**values: object) -> str:
    return "something printed before\n" + json.dumps({"version": "1.0", **values})


def test_expected_losses_are_those_of_the_problem() -> None:
    assert losses_by_hand() == pytest.approx(EXPECTED, rel=1e-9)
    # A wrong gradient must be seen: the loss has to move by far more than what is tolerated.
    assert EXPECTED[-1] < 0.9 * EXPECTED[0]


def test_judge_when_right_on_the_cpu() -> None:
    proof = judge(told(cpu=EXPECTED), "cpu", "now")
    assert (proof.device, proof.deviation) == ("cpu", 0.0)


def test_judge_when_right_on_the_gpu_within_tf32() -> None:
    rounded = [loss * 1.002 for loss in EXPECTED]
    proof = judge(told(cpu=EXPECTED, gpu=rounded, device_name="RTX 3060"), "gpu", "now")
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
    text = told(**values)
    with pytest.raises(RunFailed) as caught:
        judge(text, "gpu" if "gpu" in values or len(values) == 1 else "cpu", "now")
    assert caught.value.rule == "wrong-result"
