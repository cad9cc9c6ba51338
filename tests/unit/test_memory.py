"""What is done where memory is short: with figures of machines that are not here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flatout.errors import UsageError
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import Candidate, Interval, Profile, Result, Rung, Setting, Trial
from flatout.schema.units import bytes_text, parse_bytes
from flatout.tune.candidates import base_candidate, candidates, plain_changes
from flatout.tune.ladder import Ladder
from flatout.tune.memory import (
    DESKTOP_BYTES,
    accumulated,
    larger_parts,
    loop_name,
    lowered_cap,
    recomputing,
    room_for,
    too_large,
    unless_moved,
)

GIB = 2**30
SETTING = Setting(
    device="cuda", data_kind="tensors", batch_size=50, num_cores=8, num_threads=8,
    has_batch_norm=False, has_bf16=True, has_tf32=True, can_be_fused=True, has_foreach=True,
)  # fmt: skip
PROFILE = Profile(
    step_s=0.01, start_s=2.0, shares={"data": 0.3, "forward": 0.7}, num_operations=100,
    has_convolutions=False, has_products=True, has_attention=False,
)  # fmt: skip


def changed(**fields: Any) -> Setting:
    return msgspec.structs.replace(SETTING, **fields)


def reasons(setting: Setting) -> dict[str, str]:
    return {skip.name: skip.reason for skip in candidates(setting, PROFILE, "default")[1]}


def test_a_batch_that_does_not_fit_is_halved_down_to_one_sample() -> None:
    sizes = [one["micro_batch_size"] for one in accumulated(SETTING)]
    assert sizes == [25, 13, 7, 4, 2, 1]


@pytest.mark.parametrize("fields", [{"has_batch_norm": True}, {"fixed": {"micro_batch_size": 25}}])
def test_a_batch_is_not_cut_where(fields: dict[str, Any]) -> None:
    assert accumulated(changed(**fields)) == ()


def test_activations_are_computed_again_where_there_are_blocks() -> None:
    assert recomputing(SETTING) == ()
    shares = [one["activation_checkpointing"] for one in recomputing(changed(has_blocks=True))]
    assert shares == [0.25, 0.5, 0.75, True]
    fixed = {"activation_checkpointing": False}
    assert recomputing(changed(has_blocks=True, fixed=fixed)) == ()


def test_larger_parts_are_tried_where_blocks_can_be_computed_again() -> None:
    short = changed(has_blocks=True, baseline={"micro_batch_size": 13})
    found = list(larger_parts(short))
    assert [one.changes["activation_checkpointing"] for one in found] == [0.25, 0.5, 0.75, True]
    assert {one.changes["micro_batch_size"] for one in found} == {26}
    assert found[0].name == "micro-batches of 26, 25 % of the blocks recomputed"
    capped = changed(has_blocks=True, baseline={"micro_batch_size": 25}, batch_size=48)
    assert {one.changes["micro_batch_size"] for one in larger_parts(capped)} == {48}


@pytest.mark.parametrize(
    "fields",
    [
        {"has_blocks": True},
        {"baseline": {"micro_batch_size": 13}},
        {"has_blocks": True, "baseline": {"micro_batch_size": 13},
         "fixed": {"activation_checkpointing": False}},
    ],
)  # fmt: skip
def test_larger_parts_are_not_tried_where(fields: dict[str, Any]) -> None:
    assert list(larger_parts(changed(**fields))) == []


def test_what_the_plain_loop_needs_is_in_every_recipe_of_the_search() -> None:
    setting = changed(baseline={"micro_batch_size": 13}, fixed={"num_threads": 2})
    assert base_candidate(setting).changes == {"micro_batch_size": 13, "num_threads": 2}
    assert plain_changes(setting)["micro_batch_size"] == 13
    found = reasons(changed(batch_size=64, baseline={"micro_batch_size": 16}))
    assert "already needs micro-batches this small" in found["4 micro-batches of 16"]


def test_the_ladder_begins_with_the_loop_that_fits() -> None:
    ladder = Ladder()
    name = loop_name({"micro_batch_size": 13}, 50)
    ladder.begin(Rung(name=name, changes={"micro_batch_size": 13}, samples_per_s=10.0))
    assert ladder.rungs[0].name == "plain loop, 4 micro-batches"
    assert loop_name({}, 50) == "plain loop"
    said = loop_name({"activation_checkpointing": True}, 50)
    assert said == "plain loop, all blocks recomputed"
    assert "50 % of the blocks" in loop_name({"activation_checkpointing": 0.5}, 50)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("1.5GiB", 3 * 2**29), ("800 MB", 800_000_000), ("512mib", 2**29), ("7B", 7)],
)
def test_parse_bytes_when(text: str, num_bytes: int) -> None:
    assert parse_bytes(text, "--leave-free") == num_bytes


@pytest.mark.parametrize("text", ["", "2", "-1GiB", "1.5", "GiB", "1GiBs", "1e3MB", "inf GiB"])
def test_parse_bytes_when_it_is_no_size(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text, "--leave-free")
    assert caught.value.rule == "bad-size"


def test_leave_free_crosses_the_border() -> None:
    request = TrainRequest(resume="last", leave_free="1GiB")
    assert request.change.leave_free_bytes == GIB
    assert TrainRequest().leave_free_bytes is None


ROOMS: list[tuple[int | None, dict[str, Any], tuple[int, bool, bool], str]] = [
    # On Linux NVML tells; a GPU without a display is flatout's alone.
    (None, {"has_display": False}, (0, False, False), "not drive a display"),
    (None, {"has_display": True}, (DESKTOP_BYTES, True, True), "drives a display"),
    (None, {"has_display": None}, (0, False, False), "not drive a display"),
    # Under WSL it is not told: Windows drives its display with the GPU.
    (None, {"has_display": None, "has_windows_driver": True}, (DESKTOP_BYTES, True, True),
     "assuming"),
    # A second card on Windows: nothing to leave, but the driver must not move memory.
    (None, {"has_display": False, "has_windows_driver": True}, (0, False, True),
     "not drive a display"),
    (0, {"has_display": True}, (0, True, False), "set by you"),
    (GIB, {"has_display": False}, (GIB, False, True), "set by you"),
    (GIB, {"is_gpu": False, "has_display": False}, (GIB, False, False), "on a CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "facts", "expected", "why"), ROOMS)
def test_room_for_others_when(
    asked: int | None, facts: dict[str, Any], expected: tuple[int, bool, bool], why: str
) -> None:
    room = room_for(asked, **({"is_gpu": True, "has_windows_driver": False} | facts))
    assert (room.leave_bytes, room.is_desktop, room.is_capped) == expected
    assert why in room.why


@pytest.mark.parametrize(
    ("free", "held", "needed", "lowered"),
    [
        # 24 GiB of which this run may take 20; a browser has taken 1 GiB of the 1.5 to be left.
        (0.5, 20, 12, 19.0),
        # It has taken all there is, and the run needs what it has.
        (0.0, 20, 19.5, 19.5),
        # Nothing was taken.
        (1.5, 20, 12, None),
        (3.5, 18, 12, None),
        # Kernels that were loaded late.
        (1.47, 20, 12, None),
    ],
)
def test_lowered_cap_when(free: float, held: float, needed: float, lowered: float | None) -> None:
    found = lowered_cap(
        20 * GIB,
        free_bytes=round(free * GIB),
        held_bytes=round(held * GIB),
        needed_bytes=round(needed * GIB),
        leave_bytes=DESKTOP_BYTES,
    )
    assert found == (None if lowered is None else round(lowered * GIB))


@pytest.mark.parametrize(
    ("excess", "speedup", "before", "after", "is_moved"),
    [
        # Twice the size, a tenth of the speed, more than there is: moved.
        (2.0, 0.1, 25, 50, True),
        (2.0, 0.2, 50, 50, True),
        # It fitted, and is slow for a reason of its own.
        (0.0, 0.1, 25, 50, False),
        # More than was told to be free, and as fast as before: the desktop has made room.
        (0.5, 1.1, 25, 50, False),
        # Half the size at half the speed: a GPU takes as long for fewer samples.
        (0.5, 0.5, 50, 25, False),
        (0.5, 0.1, 50, 25, True),
    ],
)
def test_what_the_driver_has_moved_did_not_fit(
    excess: float, speedup: float, before: int, after: int, is_moved: bool
) -> None:
    changes = {"micro_batch_size": after}
    candidate = Candidate(name="parts", axis="micro-batch", changes=changes, why="")
    result = Result(
        trial=Trial(
            stage="screen",
            candidate=candidate,
            incumbent={"micro_batch_size": before} if before != 50 else {},
            changes=changes,
        ),
        cost_s=1.0,
        speedup=Interval(middle=speedup, low=speedup, high=speedup),
        excess_bytes=round(excess * GIB),
    )
    seen = unless_moved(result, SETTING)
    assert (seen.speedup is None) == is_moved
    if is_moved:
        assert seen.problem is not None and seen.problem.rule == "out-of-memory"
        assert f"the driver moved {bytes_text(excess * GIB)} to" in seen.problem.problem
    else:
        assert seen == result


def test_data_that_others_would_have_to_make_room_for_is_not_put_on_the_gpu() -> None:
    setting = changed(data_bytes=3 * GIB, free_bytes=2 * GIB)
    assert reasons(setting)["data held on the GPU"] == "it needs 3.0 GiB, but only 2.0 GiB is free"
    assert too_large(changed(free_bytes=-GIB), 1) == "it needs 1 B, but only 0 B is free"
    assert too_large(SETTING, 3 * GIB) is None
