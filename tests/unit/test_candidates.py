"""Which candidates there are, and why the others are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flatout.schema.cpu_topology import LogicalCpu, Topology
from flatout.schema.recipe import check_field
from flatout.schema.tuning import Cache, Load, Profile, Setting
from flatout.tune.candidates import base_candidate, candidates, plain_changes

CPU = Setting(
    device="cpu", data_kind="tensors", batch_size=64, num_cores=2, num_threads=2,
    has_batch_norm=False, has_bf16=True, has_tf32=False, can_be_fused=True, has_foreach=True,
)  # fmt: skip
GPU = msgspec.structs.replace(CPU, device="cuda", has_tf32=True)
BUSY = Profile(
    step_s=0.01, start_s=2.0, shares={"data": 0.1, "optimizer": 0.2, "forward": 0.7},
    num_operations=100, has_convolutions=True, has_products=True, has_attention=True,
)  # fmt: skip


def names(setting: Setting, profile: Profile = BUSY, numerics: Any = "default") -> list[str]:
    tried, _ = candidates(setting, profile, numerics)
    return [candidate.name for candidate in tried]


def reasons(setting: Setting, profile: Profile = BUSY, numerics: Any = "default") -> dict[str, str]:
    _, skipped = candidates(setting, profile, numerics)
    return {skip.name: skip.reason for skip in skipped}


def test_a_cpu_with_bf16_tries_it_alone_and_with_what_it_needs() -> None:
    found = names(CPU)
    assert found.index("bf16 autocast") < found.index("channels_last")
    assert "bf16 autocast + channels_last" in found and "bf16 autocast + math attention" in found
    assert reasons(CPU)["tf32 products"] == "this device does not support tf32"


def test_a_cpu_without_bf16_does_not_try_it() -> None:
    assert "bf16 autocast" not in names(msgspec.structs.replace(CPU, has_bf16=False))


def test_strict_numerics_try_no_other_number_format() -> None:
    assert not [name for name in names(GPU, numerics="strict") if "bf16" in name or "tf32" in name]


def test_fp16_is_tried_on_a_gpu_where_it_was_asked_for() -> None:
    assert "fp16 autocast, scaled" in names(GPU, numerics="fast")
    assert "fp16 autocast, scaled" not in names(GPU)
    assert "fp16 autocast, scaled" not in names(CPU, numerics="fast")


def test_batch_norm_forbids_micro_batches() -> None:
    assert "2 micro-batches of 32" in names(CPU)
    found = reasons(msgspec.structs.replace(CPU, has_batch_norm=True))
    assert found["2 micro-batches of 32"].startswith("BatchNorm")


def test_micro_batches_must_divide_the_batch() -> None:
    odd = msgspec.structs.replace(CPU, batch_size=63)
    assert not [name for name in names(odd) if "micro" in name]


def test_channels_last_is_not_tried_where_weights_have_five_dimensions() -> None:
    volumes = msgspec.structs.replace(CPU, has_volumes=True)
    assert not [name for name in names(volumes) if "channels_last" in name]
    assert "5-d" in reasons(volumes)["channels_last"]


def test_freed_memory_is_kept_where_a_step_waits_for_new_pages() -> None:
    assert BUSY.step_s == 0.01
    faulting = msgspec.structs.replace(BUSY, num_page_faults=1000)
    found = names(CPU, faulting)
    assert found.index("channels_last") < found.index("freed memory kept")
    assert found.index("freed memory kept") < found.index("fused optimizer")


@pytest.mark.parametrize(
    ("changes", "faults", "reason"),
    [
        ({}, 99, "a step waits for only 99 new pages of memory"),
        ({}, None, "a step waits for only 0 new pages of memory"),
        ({"device": "cuda"}, 1000, "the step's memory is on the GPU"),
        ({"not_retained": "no glibc"}, 1000, "no glibc"),
        ({"has_processes": False}, 1000, "needs a separate process"),
    ],
)
def test_freed_memory_is_not_kept(changes: dict[str, Any], faults: int | None, reason: str) -> None:
    setting = msgspec.structs.replace(CPU, **changes)
    profile = msgspec.structs.replace(BUSY, num_page_faults=faults)
    assert reasons(setting, profile)["freed memory kept"].startswith(reason)


def test_one_thread_is_tried_where_operations_are_short() -> None:
    assert "1 CPU thread" in names(CPU, msgspec.structs.replace(BUSY, step_s=0.009))
    long = msgspec.structs.replace(BUSY, step_s=0.02)
    assert reasons(CPU, long)["1 CPU thread"].startswith("operations take 200 us")
    several = msgspec.structs.replace(CPU, num_cores=8, num_threads=8)
    assert "4 CPU threads" in names(several, long)


# Two performance cores with two threads each, and an efficiency core.
HYBRID = Topology(
    cpus=tuple(
        LogicalCpu(index=index, core=core, is_performance=core != "4")
        for index, core in enumerate(("0-1", "0-1", "2-3", "2-3", "4"))
    )
)


def affinities(**changes: Any) -> dict[str, Any]:
    tried, _ = candidates(msgspec.structs.replace(CPU, **changes), BUSY, "default")
    return {one.name: one.changes for one in tried if one.axis == "affinity"}


def test_affinity_is_tried_with_as_many_threads_as_it_leaves_cpus() -> None:
    assert affinities(topology=HYBRID, num_cores=3, num_threads=3) == {
        "one thread per core": {"cpu_affinity": "one-per-core", "num_threads": 3},
        "performance cores alone": {"cpu_affinity": "performance-cores", "num_threads": 2},
    }


def test_affinity_leaves_the_threads_that_you_have_set() -> None:
    found = affinities(topology=HYBRID, fixed={"num_threads": 3})
    assert found == {"one thread per core": {"cpu_affinity": "one-per-core"}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topology": Topology(cpus=HYBRID.cpus[2:4:2])}, "no two CPUs"),
        ({"topology": Topology(problem="on Linux alone")}, "on Linux alone"),
        ({"topology": HYBRID, "device": "cuda"}, "the step runs on the GPU"),
        ({"topology": HYBRID, "fixed": {"num_threads": 4}}, "you have set num_threads=4"),
        ({"topology": HYBRID, "fixed": {"cpu_affinity": "all"}}, "you have set cpu_affinity"),
    ],
)
def test_affinity_is_not_tried(changes: dict[str, Any], reason: str) -> None:
    setting = msgspec.structs.replace(CPU, **changes)
    assert reasons(setting)["one thread per core"].startswith(reason)


def test_what_takes_nothing_of_the_step_is_not_tried() -> None:
    little = msgspec.structs.replace(BUSY, shares={"optimizer": 0.01, "forward": 0.99})
    assert "fused optimizer" not in names(CPU, little)
    assert reasons(CPU, little)["fused optimizer"] == "the optimizer takes 1.0 % of the step"


def test_a_step_that_waits_for_its_data_begins_with_the_data() -> None:
    images = msgspec.structs.replace(CPU, data_kind="map-style")
    waiting = msgspec.structs.replace(BUSY, shares={"data": 0.8, "forward": 0.2})
    assert names(images, waiting)[0] == "1 loader worker"
    assert names(images)[0] == "bf16 autocast"


def test_workers_do_not_read_an_iterable() -> None:
    stream = msgspec.structs.replace(CPU, data_kind="iterable")
    assert not [name for name in names(stream) if "worker" in name]


IMAGES = msgspec.structs.replace(
    CPU, data_kind="map-style", cache=Cache(num_bytes=2**31, num_samples=5000, num_measured=400)
)
WAITING = msgspec.structs.replace(BUSY, shares={"data": 0.8, "copy": 0.1, "forward": 0.1})


def test_a_cache_is_tried_after_the_loader_at_its_best() -> None:
    found = names(IMAGES, WAITING)
    first = found.index("decoded cache")
    assert found[first - 1] == "4 batches ahead per worker"
    assert found[:first] == [name for name in found[:first] if "worker" in name]
    [cache] = [one for one in candidates(IMAGES, WAITING, "default")[0] if one.axis == "cache"]
    assert "2.0 GiB; measured with 400 of 5,000 samples cached" in cache.why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cache": Cache(problem="its samples are drawn anew each time")}, "drawn anew"),
        ({"cache": None}, "not examined"),
        ({"data_kind": "iterable"}, "no index"),
        ({"fixed": {"data_path": "loader"}}, "you have set data_path"),
    ],
    ids=str,
)
def test_why_there_is_no_cache(change: dict[str, Any], reason: str) -> None:
    setting = msgspec.structs.replace(IMAGES, **change)
    assert "decoded cache" not in names(setting, WAITING)
    assert reason in reasons(setting, WAITING)["decoded cache"]


def test_nothing_about_reading_is_tried_where_it_takes_no_time() -> None:
    little = msgspec.structs.replace(BUSY, shares={"data": 0.01, "forward": 0.99})
    found = reasons(msgspec.structs.replace(IMAGES, device="cuda"), little)
    for name in ("1 loader worker", "4 batches ahead per worker", "decoded cache"):
        assert found[name] == "reading takes 1.0 % of the step"
    assert found["pinned batches"] == "reading and copying take 1.0 % of the step"


def test_a_full_cache_needs_no_workers() -> None:
    cached = msgspec.structs.replace(IMAGES, fixed={"data_path": "cached"})
    assert reasons(cached, WAITING)["2 loader workers"].startswith("no sample is read")


def test_batches_are_pinned_for_a_gpu_alone() -> None:
    assert "pinned batches" in names(msgspec.structs.replace(IMAGES, device="cuda"), WAITING)
    assert reasons(IMAGES, WAITING)["pinned batches"] == "there is no GPU to copy to"


def test_a_field_that_the_person_has_set_is_not_tried() -> None:
    fixed = msgspec.structs.replace(CPU, fixed={"precision": "fp32"})
    assert not [name for name in names(fixed) if "bf16" in name]
    assert reasons(fixed)["bf16 autocast"] == "you have set precision"
    assert base_candidate(fixed).changes == {"precision": "fp32"}


@pytest.mark.parametrize("setting", [CPU, GPU, IMAGES])
def test_every_change_is_a_recipe_field_with_a_value_it_can_have(setting: Setting) -> None:
    tried, _ = candidates(setting, BUSY, "fast")
    for changes in [plain_changes(setting), *(candidate.changes for candidate in tried)]:
        for name, value in changes.items():
            assert check_field(name, value) == value


def test_names_are_different() -> None:
    tried, skipped = candidates(CPU, BUSY, "default")
    found = [one.name for one in (*tried, *skipped)]
    assert len(found) == len(set(found))


LAUNCHED = msgspec.structs.replace(
    GPU, forms_to_capture=("fused", "foreach", "own"), can_be_fused=True
)


def waiting(share: float) -> Profile:
    return msgspec.structs.replace(BUSY, host_share=share)


def test_graphs_are_tried_first_where_a_step_consists_of_launches() -> None:
    found = names(LAUNCHED, waiting(0.9))
    assert found[:2] == ["step in a CUDA graph", "CUDA graph of 8 steps"]


def test_graphs_are_tried_late_where_the_host_is_busy_for_a_part() -> None:
    found = names(LAUNCHED, waiting(0.4))
    assert found[0] != "step in a CUDA graph" and "step in a CUDA graph" in found
    assert "separately" in reasons(LAUNCHED, waiting(0.4))["CUDA graph of 8 steps"]


def test_graphs_are_not_tried_where_launches_do_not_count() -> None:
    assert "host share 3" in reasons(LAUNCHED, waiting(0.03))["step in a CUDA graph"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "cpu"}, "CPU"),
        ({"forms_to_capture": ()}, "optimizer's update"),
        ({"forms_to_capture": (), "not_captured": "a sparse embedding"}, "a sparse embedding"),
        ({"fixed": {"nonfinite_loss": "skip"}}, "waits for its loss"),
        ({"fixed": {"optimizer_implementation": "for-loop"}}, "not as for-loop"),
        ({"fixed": {"precision": "fp16"}}, "fp16"),
        ({"baseline": {"activation_checkpointing": True}}, "activation checkpointing"),
        ({"fixed": {"capture": "off"}}, "you have set capture"),
    ],
)
def test_graphs_are_not_tried_where_they_cannot_be(fields: dict[str, Any], reason: str) -> None:
    found = reasons(msgspec.structs.replace(LAUNCHED, **fields), waiting(0.9))
    assert reason in found["step in a CUDA graph"]


def test_sgd_is_captured_in_its_fused_form() -> None:
    only_fused = msgspec.structs.replace(LAUNCHED, forms_to_capture=("fused",))
    tried, _ = candidates(only_fused, waiting(0.9), "default")
    assert tried[0].changes["optimizer_implementation"] == "fused"
    fixed = msgspec.structs.replace(only_fused, fixed={"optimizer_implementation": "fused"})
    tried, _ = candidates(fixed, waiting(0.9), "default")
    assert "optimizer_implementation" not in tried[0].changes


def test_times_of_a_busy_machine_leave_nothing_out() -> None:
    load = Load(other_cpus=1.5, num_cpus=2)
    long = msgspec.structs.replace(BUSY, step_s=0.02, shares={"optimizer": 0.001, "data": 0.001})
    assert "1 CPU thread" in reasons(CPU, long) and "fused optimizer" in reasons(CPU, long)
    beside = msgspec.structs.replace(long, load=load)
    assert {"1 CPU thread", "fused optimizer"} <= set(names(CPU, beside))
    little = msgspec.structs.replace(long, load=Load(other_cpus=0.2, num_cpus=2))
    assert "1 CPU thread" in reasons(CPU, little)


def test_fewer_threads_are_tried_first_where_other_programs_run() -> None:
    setting = msgspec.structs.replace(CPU, num_threads=16, num_cores=16)
    beside = msgspec.structs.replace(BUSY, load=Load(other_cpus=3.2, num_cpus=16))
    assert names(setting, beside)[:3] == ["1 CPU thread", "8 CPU threads", "13 CPU threads"]
    assert names(setting)[0] != "1 CPU thread" and "13 CPU threads" not in names(setting)


def test_no_more_threads_are_tried_than_the_defaults_have() -> None:
    assert "one thread per core" not in affinities(topology=HYBRID, defaults={"num_threads": 1})
    setting = msgspec.structs.replace(CPU, defaults={"num_threads": 1})
    assert "threads wait for each other" in reasons(setting)["2 CPU threads"]
    assert not [name for name in names(setting) if "thread" in name]


def test_what_the_defaults_have_is_tried_without() -> None:
    defaults = {"optimizer_implementation": "fused", "loader_workers": 2}
    setting = msgspec.structs.replace(CPU, data_kind="map-style", defaults=defaults)
    found = names(setting)
    assert "own optimizer" in found and "fused optimizer" not in found
    assert "no loader workers" in found and "2 loader workers" not in found
    # However little reading takes: workers take CPUs from the step.
    idle = msgspec.structs.replace(BUSY, shares={"data": 0.001})
    assert "no loader workers" in names(setting, idle)
    assert base_candidate(setting).changes == defaults


# What the defaults of a large GPU differ in from a plain loop.
GPU_DEFAULTS: dict[str, Any] = {
    "benchmark": True, "loader_pin_memory": True, "loader_workers": 2, "loader_persistent": True,
    "optimizer_implementation": "fused",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"data_kind": "map-style", "defaults": GPU_DEFAULTS, "cache": Cache(num_bytes=1)},
        {"data_bytes": 1024, "defaults": {"benchmark": True, "data_path": "resident"}},
    ],
    ids=["map-style", "tensors"],
)
def test_nothing_is_proposed_that_the_defaults_have(changes: dict[str, Any]) -> None:
    setting = msgspec.structs.replace(
        GPU, forms_to_capture=("fused",), free_bytes=2**30, is_deterministic=False, **changes
    )
    profile = msgspec.structs.replace(BUSY, shares={**BUSY.shares, "data": 0.4}, host_share=0.8)
    tried, _ = candidates(setting, profile, "fast")
    base = base_candidate(setting).changes.items()
    assert [one.name for one in tried if one.changes.items() <= base] == []
    assert {"benchmark": False} in [one.changes for one in tried]


def test_benchmark_is_proposed_where_the_defaults_lack_it() -> None:
    assert "cuDNN's benchmark" in names(msgspec.structs.replace(GPU, is_deterministic=False))
