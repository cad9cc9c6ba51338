"""Where the time of a step goes: from events made by hand, without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.engine.profile.events import profile_report
from flatout.engine.profile.kinds import is_pageable_copy, kernel_part, operator_part
from flatout.engine.profile.memory import Allocation, last_step, of_device, peak_use
from flatout.engine.profile.split import ON_CPU, MeasuredSteps, window_of
from flatout.engine.profile.step_plan import StepPlan
from flatout.engine.profile.tables import OPTIMIZER, moved_bytes
from flatout.engine.profile.trace_event import BEGIN, LAYER, MARK, TraceEvent
from flatout.schema.step_profile import OUTSIDE

MS = 1e-3


def event(name: str, begin_ms: float, end_ms: float, **others: object) -> TraceEvent:
    return TraceEvent(name=name, start_s=begin_ms * MS, end_s=end_ms * MS, **others)  # type: ignore[arg-type]


def marks(*ends: tuple[str, float]) -> list[TraceEvent]:
    return [event(MARK + name, at_ms, at_ms) for name, at_ms in ends]


def cpu_step() -> list[TraceEvent]:
    """10 ms: 2 of data, 4 forward with 3 of products, 3 backward, 1 of the optimizer."""
    found = [
        *marks((BEGIN, 0), ("data", 2), ("forward", 6), ("backward", 9), ("optimizer", 10)),
        event(LAYER + "body.0", 2.5, 5.75),
        event("aten::linear", 2.5, 5.5),
        event("aten::addmm", 2.5, 5.5, sequence=7, shapes="64x8 8x4", dtype="float"),
        event("autograd::engine::evaluate_function: AddmmBackward0", 6, 8, sequence=7,
              is_backward=True),
        event("aten::mm", 6, 8, is_backward=True),
        event("aten::add_", 8, 9),
        event("aten::_fused_adamw_", 9, 10),
    ]  # fmt: skip
    found.sort(key=lambda one: one.start_s)
    numbers = {one.name: number for number, one in enumerate(found)}
    parents = {
        "aten::linear": LAYER + "body.0",
        "aten::addmm": "aten::linear",
        "aten::mm": "autograd::engine::evaluate_function: AddmmBackward0",
    }
    return [
        event(
            one.name, one.start_s / MS, one.end_s / MS, sequence=one.sequence, shapes=one.shapes,
            dtype=one.dtype, is_backward=one.is_backward,
            parent=numbers[parents[one.name]] if one.name in parents else None,
        )
        for one in found
    ]  # fmt: skip


def plain(step_s: float, profiled_s: float | None = None, **phases_s: float) -> MeasuredSteps:
    return MeasuredSteps(
        step_s=(step_s,), profiled_s=profiled_s or step_s, num_profiled=1, phases_s=phases_s
    )


def seconds(events: list[TraceEvent], steps: MeasuredSteps) -> dict[str, float | None]:
    return {one.part: one.seconds for one in profile_report(events, steps).split}


def test_split_of_a_cpu_step_names_each_part() -> None:
    found = seconds(cpu_step(), plain(10 * MS))
    assert found["data"] == pytest.approx(2 * MS)
    assert found["matrix"] == pytest.approx(5 * MS)
    assert found["memory"] == pytest.approx(1 * MS)
    assert found["optimizer"] == pytest.approx(1 * MS)
    # Before and after the layer, and in the layer's own Python.
    assert found["host"] == pytest.approx(1 * MS)


def test_split_adds_up_to_the_plain_step_when_the_profiler_was_slow() -> None:
    found = seconds(cpu_step(), plain(8 * MS, 10 * MS))
    assert sum(value for value in found.values() if value) == pytest.approx(8 * MS)


def test_split_takes_the_length_of_parts_from_plain_steps() -> None:
    steps = plain(10 * MS, data=6 * MS, forward=2 * MS, backward=1.5 * MS, optimizer=0.5 * MS)
    found = seconds(cpu_step(), steps)
    assert found["data"] == pytest.approx(6 * MS)
    assert found["optimizer"] == pytest.approx(0.5 * MS)
    assert sum(value for value in found.values() if value) == pytest.approx(10 * MS)


def test_operators_of_the_optimizer_are_not_among_those_of_a_step() -> None:
    # addmm, mm and add_: neither what only calls them, nor the optimizer's kernel.
    assert profile_report(cpu_step(), plain(10 * MS)).num_operators == 3


def test_work_of_the_compiler_is_the_host_s_although_it_calls_operators() -> None:
    events = [
        *marks((BEGIN, 0)),
        event("entire_frame_compile (dynamo_timed)", 0, 6),
        event("aten::mul", 1, 5, parent=1),
        event("aten::mul", 6, 8),
        *marks(("forward", 8)),
    ]
    report = profile_report(events, plain(8 * MS))
    found = seconds(events, plain(8 * MS))
    assert (found["host"], found["memory"]) == (pytest.approx(6 * MS), pytest.approx(2 * MS))
    assert report.num_operators == 1


def test_split_leaves_out_what_a_cpu_does_not_have() -> None:
    report = profile_report(cpu_step(), plain(10 * MS))
    absent = {one.part: one.reason for one in report.split if one.seconds is None}
    assert absent == {"launch": ON_CPU, "idle": ON_CPU}


def test_cost_of_the_profiler_is_not_in_the_host_when_operators_are_many() -> None:
    # 100 operators of 10 us with 10 us between them, which only the profiler takes.
    events = marks((BEGIN, 0), ("step", 2.0))
    events[1:1] = [event("aten::mul", 0.02 * n + 0.01, 0.02 * n + 0.02) for n in range(100)]
    found = seconds(events, plain(1 * MS, 2 * MS))
    assert found["host"] == pytest.approx(0.0, abs=0.05 * MS)
    assert found["memory"] == pytest.approx(1 * MS, rel=0.05)


def test_gaps_of_a_gpu_are_what_the_host_does_then() -> None:
    events = [
        *marks((BEGIN, 0), ("data", 2), ("forward", 10)),
        event("aten::addmm", 3, 4),
        event("cudaStreamSynchronize", 8, 9.5),
        event("Memcpy HtoD (Pageable -> Device)", 2, 2.5, is_device=True),
        event("ampere_sgemm_128x64_tn", 4, 6, is_device=True),
        event("vectorized_elementwise_kernel", 6, 7, is_device=True),
    ]
    events.sort(key=lambda one: one.start_s)
    report = profile_report(events, plain(10 * MS))
    found = {one.part: one.seconds for one in report.split}
    assert found["data"] == pytest.approx(2 * MS)
    assert found["copy"] == pytest.approx(0.5 * MS)
    assert found["launch"] == pytest.approx(1 * MS)
    assert found["matrix"] == pytest.approx(2 * MS)
    assert found["memory"] == pytest.approx(1 * MS)
    assert found["sync"] == pytest.approx(1.5 * MS)
    assert found["host"] == pytest.approx(2 * MS)
    assert sum(value for value in found.values() if value) == pytest.approx(10 * MS)
    assert report.pageable_copy_s == pytest.approx(0.5 * MS)


def test_kernels_that_run_at_the_same_time_count_once() -> None:
    events = [
        *marks((BEGIN, 0), ("step", 10)),
        event("ncclDevKernel_AllReduce_Sum", 0, 10, is_device=True),
        event("sm90_xmma_gemm", 2, 6, is_device=True),
    ]
    found = seconds(events, plain(10 * MS))
    assert found["matrix"] == pytest.approx(4 * MS)
    assert found["communication"] == pytest.approx(6 * MS)


def test_tables_give_self_time_and_the_layer_of_the_backward_pass() -> None:
    report = profile_report(cpu_step(), plain(10 * MS))
    rows = {row.name: row for row in report.operators}
    assert rows["aten::addmm"].self_s == pytest.approx(3 * MS)
    assert rows["aten::linear"].self_s == pytest.approx(0.0, abs=1e-9)
    assert rows["aten::linear"].total_s == pytest.approx(3 * MS)
    assert rows["aten::mm"].layer == "body.0"
    assert rows["aten::addmm"].shapes == "64x8 8x4"
    layers = {row.name: row for row in report.layers}
    assert layers["body.0"].calls == 1
    assert layers["body.0"].total_s == pytest.approx(5.25 * MS)
    assert OUTSIDE in layers


def test_operators_below_an_optimizers_step_belong_to_it() -> None:
    events = [
        *marks((BEGIN, 0)),
        event("Optimizer.step#SGD.step", 0, 4),
        event("aten::mul_", 1, 4, parent=1),
        *marks(("step", 5)),
    ]
    report = profile_report(events, plain(5 * MS))
    found = {one.part: one.seconds for one in report.split}
    # With its own Python.
    assert found["optimizer"] == pytest.approx(4 * MS)
    assert next(row for row in report.operators if row.name == "aten::mul_").layer == OPTIMIZER


def test_trace_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marked steps"):
        window_of([event("aten::mm", 0, 1)])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("aten::addmm", "matrix"), ("aten::mkldnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"), ("aten::native_layer_norm", "memory"),
        ("aten::_local_scalar_dense", "sync"), ("aten::view", "host"),
        ("aten::_fused_adamw_", "optimizer"), ("c10d::allreduce_", "communication"),
        ("autograd::engine::evaluate_function: MulBackward0", "host"), ("my region", "host"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "matrix"),
    ],
)  # fmt: skip
def test_operators_have_the_part_that_their_name_says(name: str, part: str) -> None:
    assert operator_part(name) == part


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cutlass_80_tensorop_bf16_s16816gemm", "matrix"), ("nvjet_tst_128x256", "matrix"),
        ("cudnn_infer_ampere_scudnn_winograd", "convolution"), ("flash_fwd_kernel", "matrix"),
        ("ncclDevKernel_AllReduce_Sum_f32", "communication"), ("Memcpy HtoD (Pinned)", "copy"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdam>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel", "memory"),
    ],
)  # fmt: skip
def test_kernels_have_the_part_that_their_name_says(name: str, part: str) -> None:
    assert kernel_part(name) == part


def test_copies_are_pageable_only_when_the_memory_was() -> None:
    assert is_pageable_copy("Memcpy HtoD (Pageable -> Device)")
    assert not is_pageable_copy("Memcpy HtoD (Pinned -> Device)")


def test_moved_bytes_count_inputs_and_one_result() -> None:
    assert moved_bytes("4x8 4x8", "float") == 3 * 32 * 4
    assert moved_bytes("4x8", "c10::BFloat16") == 2 * 32 * 2
    assert moved_bytes("", "float") == 0


def test_a_synchronization_within_another_is_the_same_one() -> None:
    events = [
        *marks((BEGIN, 0)),
        event("aten::is_nonzero", 0, 3),
        event("aten::item", 0, 3, parent=1),
        event("aten::_local_scalar_dense", 0, 3, parent=2),
        event("cudaStreamSynchronize", 1, 3, parent=3),
        event("cudaDeviceSynchronize", 4, 5),
        *marks(("step", 6)),
    ]
    assert profile_report(events, plain(6 * MS)).num_syncs * plain(6 * MS).num_profiled == 2


def allocation(at_s: float, address: int, num_bytes: int, holder: str = "a") -> Allocation:
    return Allocation(at_s=at_s, address=address, num_bytes=num_bytes, holder=holder)


def test_peak_names_what_is_held_then() -> None:
    use = peak_use(
        [
            allocation(0.5, 1, 100, "layer"),
            allocation(1.5, 2, 300, "loss"),
            allocation(1.6, 2, -300),
            allocation(1.7, 3, 50, "layer"),
        ],
        {"weights": 1000},
        1.0,
        2.0,
    )
    assert use.peak_bytes == 1400
    assert [(one.name, one.num_bytes) for one in use.at_peak] == [
        ("weights", 1000), ("loss", 300), ("layer", 100),
    ]  # fmt: skip
    assert [num_bytes for _, num_bytes in use.timeline] == [1400, 1100, 1150]


def test_memory_of_the_computer_does_not_count_where_there_is_a_gpu() -> None:
    batch = allocation(1.0, 1, 100)
    weights = Allocation(at_s=1.0, address=1, num_bytes=300, holder="a", is_device=True)
    assert list(of_device([batch, weights])) == [weights]
    assert list(of_device([batch])) == [batch]


def test_peak_is_unknown_when_nothing_was_allocated() -> None:
    use = peak_use([], {"weights": 1000}, 0.0, 1.0)
    assert use.peak_bytes is None
    assert use.reason == "the step has allocated nothing"


def test_last_step_is_from_the_end_of_the_one_before() -> None:
    ends = [(0.0, BEGIN), (1.0, "data"), (2.0, "other"), (3.0, "data"), (4.0, "other")]
    assert last_step(ends) == (2.0, 4.0)


def test_plan_has_the_steps_that_were_asked_for_else_those_of_its_time() -> None:
    plan = StepPlan(plain_s=1.0, sampled_s=2.0, profiled_s=1.0)
    assert (plan.num_plain(0.1), plan.num_sampled(0.1), plan.num_profiled(0.1)) == (10, 20, 10)
    assert (plan.num_plain(10.0), plan.num_profiled(0.001)) == (3, 20)
    wanted = replace(plan, wanted=50)
    assert (wanted.num_plain(0.1), wanted.num_sampled(0.1), wanted.num_profiled(0.1)) == (
        50,
        20,
        50,
    )
