"""The gate's arithmetic: what is asked, and where a band ends."""

from __future__ import annotations

import math

import pytest

from flatout.schema.recipe import recipe_fields
from flatout.tune.gate import (
    BANDS,
    Errors,
    TensorError,
    checks_for,
    coarser,
    curve_difference,
    gradient_check,
    ratio_check,
    ways_ratio,
    worst_part,
)


def test_questions_when_only_the_data_is_read_otherwise() -> None:
    assert checks_for(["loader_workers", "loader_prefetch"]) == {"data"}


def test_questions_when_threads_change() -> None:
    assert checks_for(["num_threads"]) == {"gradients"}


def test_questions_when_nothing_or_only_checkpoints_change() -> None:
    assert checks_for([]) == checks_for(["checkpoint_every"]) == frozenset()


def test_questions_when_a_field_is_not_known() -> None:
    assert checks_for(["unheard_of"]) == {
        "gradients", "accumulation", "optimizer", "curve", "masks", "data",
    }  # fmt: skip


def test_questions_when_updates_are_in_graphs() -> None:
    assert checks_for(["capture", "steps_per_launch"]) == {"replays"}
    assert checks_for(["capture", "precision"]) == {"replays"} | checks_for(["precision"])


@pytest.mark.parametrize("name", recipe_fields())
def test_questions_of_each_field(name: str) -> None:
    # Compiled code has checks of its own, which no question stands for.
    assert checks_for([name]) or name in ("checkpoint_every", "compiled", "compile_mode")


def test_bands_when_fewer_bits() -> None:
    assert BANDS["fp32"].gradient < BANDS["tf32"].gradient < BANDS["bf16"].gradient
    assert coarser("fp32", "bf16") == coarser("bf16", "tf32") == "bf16"


@pytest.mark.parametrize(
    ("error", "is_passed"), [(0.039, True), (0.041, False), (math.nan, False), (math.inf, False)]
)
def test_gradient_check_when_eager_is_off_by_a_hundredth(error: float, is_passed: bool) -> None:
    check = gradient_check(Errors(error=error, eager=0.01), "bf16")
    assert check.is_passed is is_passed
    assert check.allowed == pytest.approx(0.04)


def test_gradient_check_when_both_are_a_few_roundings() -> None:
    # Nine times as far as eager, and still nothing but rounding.
    assert gradient_check(Errors(error=9e-7, eager=1e-7), "fp32").is_passed


def test_gradient_check_when_the_reference_is_fp32() -> None:
    errors = Errors(error=0.06, eager=0.01, is_double=False)
    check = gradient_check(errors, "bf16")
    assert check.is_passed
    assert check.note is not None and "does not run in fp64" in check.note


def test_gradient_check_when_one_small_tensor_is_wrong() -> None:
    parts = (
        TensorError(name="a.weight", error=1e-6, eager=1e-6),
        TensorError(name="b", error=1.0, eager=1e-6),
    )
    check = gradient_check(Errors(error=1e-6, eager=1e-6, parts=parts), "fp32")
    assert not check.is_passed
    assert check.note == "relative error of b"


def test_worst_part_when_eager_itself_is_rounding() -> None:
    # The gradient of a bias before BatchNorm is zero; what comes out is noise in both.
    assert worst_part([TensorError(name="bias", error=90.0, eager=10.0)], 0.1) is None


def test_worst_part_when_a_gradient_is_missing() -> None:
    missing = TensorError(name="bias", error=math.inf, eager=0.0)
    assert worst_part([missing, TensorError(name="a", error=0.5, eager=0.0)], 0.1) == missing


@pytest.mark.parametrize(("error", "is_passed"), [(3e-3, True), (5e-3, False), (math.nan, False)])
def test_ratio_check_at_four_times(error: float, is_passed: bool) -> None:
    parts = [
        TensorError(name="a", error=0.0, eager=1.0),
        TensorError(name="b", error=error, eager=1e-3),
    ]
    assert ratio_check("optimizer", parts, 1e-6, "error").is_passed is is_passed


def test_ratio_check_when_there_is_nothing() -> None:
    assert ratio_check("optimizer", [], 1e-6, "error").is_passed


def test_curve_difference_is_relative_to_the_largest_loss() -> None:
    assert curve_difference([2.0, 1.0], [2.0, 1.1]) == pytest.approx(0.05)
    assert curve_difference([-2.0, -1.0], [-2.0, -1.1]) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("losses", "plain", "difference"),
    [
        ([1.0], [1.0, 0.5], math.inf),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([math.inf], [math.inf], 0.0),
        ([0.0], [0.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_curve_difference_at_its_edges(
    losses: list[float], plain: list[float], difference: float
) -> None:
    assert curve_difference(losses, plain) == difference


@pytest.mark.parametrize(
    ("way", "plain", "ratio"),
    [(1.0, 2.0, 2.0), (2.0, 1.0, 2.0), (0.0, 0.0, 1.0), (0.0, 1.0, math.inf), (1.0, 0.0, math.inf),
     (math.nan, 1.0, math.inf)],
)  # fmt: skip
def test_ways_ratio(way: float, plain: float, ratio: float) -> None:
    assert ways_ratio(way, plain) == ratio
