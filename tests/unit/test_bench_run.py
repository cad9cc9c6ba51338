"""`flatout bench run` without torch: what is chosen, rows, summaries, references and children."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from flatout.bench import api, compare, report_run
from flatout.bench.limits import Doing
from flatout.bench.read_files import loaded
from flatout.bench.references import references_for, shipped_references
from flatout.bench.run import Measurement, chosen_workloads, device_names, devices_here
from flatout.bench.run_effort import FULL_RUN, QUICK_RUN
from flatout.bench.run_rows import BUSY_LIMITS, NO_LIMITS, Series, rows_of, spill_warnings
from flatout.bench.run_summary import epoch_times, gpu_ratios, summaries, verdict_of
from flatout.cli.main import main
from flatout.cli.render.show_bench_run import print_run
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.framework import Framework
from flatout.schema.machine import Cpu, Gpu, Machine
from flatout.schema.run_protocol import RecipeChosen, Way, WorkloadMeasured
from flatout.schema.tuning import Interval
from flatout.schema.workloads import WORKLOADS, measured_size
from flatout.system.rapl import RaplCounter, rapl_counter

CPU = Machine(cpu=Cpu(name="AMD EPYC", num_threads=2, num_cores=2))
GPU = Machine(
    cpu=Cpu(name="AMD EPYC", num_threads=32, num_cores=16),
    gpus=(Gpu(index=0, name="NVIDIA H100", uuid="GPU-1"),),
    frameworks=(Framework(name="torch", version="2.13.0", build="cu130"),),
)
STATE = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=0.0)


def reply(**changes: Any) -> WorkloadMeasured:
    known: dict[str, Any] = {
        "torch": "2.13.0", "num_threads": 2, "data": "made-up numbers", "dtype": "fp32",
        "num_parameters": 2817, "samples_per_step": 64, "flops_per_step": 6.4e8,
        "step_s": (0.01, 0.02), "time_to_steps_s": 3.5, "peak_bytes": 2**28,
        "no_energy": "not readable: no counters", "data_share": 0.25, "loss": 0.5,
    }  # fmt: skip
    known |= changes
    return WorkloadMeasured(**{"mean_samples": (64.0,) * len(known["step_s"]), **known})


def series(
    name: str, way: Way, *replies: WorkloadMeasured, device: str = "cpu", problem: str | None = None
) -> Series:
    size = measured_size(WORKLOADS[name], device.partition(":")[0], ["cpu", "cuda"], 2)
    return Series(
        workload=WORKLOADS[name], size=size, way=way, device=device, recipe="precision=bf16",
        replies=list(replies), problem=problem,
    )  # fmt: skip


def run_file(*all_series: Series, limits: dict[str, float] | str = NO_LIMITS) -> BenchFile:
    rows = [row for one in all_series for row in rows_of(one, limits)]
    return BenchFile(
        kind="run", flatout="1", machine=CPU, began=STATE, ended=STATE, rows=tuple(rows),
        settings={"device": "cpu", "num_processes": "2", "cores": "2", "effort": "full"},
    )  # fmt: skip


def by_end(rows: list[BenchRow]) -> dict[str, BenchRow]:
    return {row.id.rpartition("/")[2]: row for row in rows}


# What is chosen.


def test_size_is_small_only_with_few_cores() -> None:
    bert = WORKLOADS["bert-large"]
    assert bert.size(["cpu"], 2) == bert.small and bert.size(["cpu"], None) == bert.small
    assert bert.size(["cpu"], 16) == bert.published and bert.size(["cuda"], 2) == bert.published


def test_all_devices_of_a_measurement_have_one_network() -> None:
    for workload in WORKLOADS.values():
        cpu, gpu = (measured_size(workload, one, ["cpu", "cuda"], 4) for one in ("cpu", "cuda"))
        assert cpu.parameters == gpu.parameters and cpu.text == gpu.text
        assert gpu.batch_size >= cpu.batch_size


def test_wsl2_benchmark_network_is_theirs_on_a_gpu() -> None:
    workload = WORKLOADS["mnist-wsl2"]
    size = measured_size(workload, "cuda", ["cuda"], 8)
    assert (size.parameters, size.batch_size) == ({"channels": 128}, 512)
    assert workload.fixed == {"precision": "fp32"}


def test_chosen_workloads() -> None:
    assert [one.name for one in chosen_workloads(())] == list(WORKLOADS)
    assert [one.name for one in chosen_workloads(("charlm", "mlp", "charlm"))] == ["charlm", "mlp"]
    with pytest.raises(UsageError) as caught:
        chosen_workloads(("resnet",))
    assert caught.value.rule == "unknown-workload" and "resnet50" in (caught.value.fix or "")


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:1", "cpu,cuda", "cuda:0, cpu"])
def test_device_names(text: str) -> None:
    assert device_names(text) == [one.strip() for one in text.split(",")]


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda,cuda:1", "auto,cpu", "cpu,", "cuda:²"]
)
def test_device_names_when_wrong(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        device_names(text)
    assert caught.value.rule == "bad-device"


def test_device_that_is_not_here_is_skipped_aloud() -> None:
    assert devices_here(GPU, ["cpu", "cuda"]) == (["cpu", "cuda:0"], [])
    found, skipped = devices_here(CPU, ["cpu", "cuda"])
    assert found == ["cpu"] and skipped == ["cuda was skipped: there is no such GPU"]
    cpu_build = msgspec.structs.replace(GPU, frameworks=(
        Framework(name="torch", version="2.13.0", build="cpu"),
    ))  # fmt: skip
    assert "a build for CPUs" in devices_here(cpu_build, ["cpu", "cuda"])[1][0]
    with pytest.raises(UsageError) as caught:
        devices_here(CPU, ["cuda"])
    assert (caught.value.rule, caught.value.because) == ("device-not-here", "there is no such GPU")


# Rows.


def test_rows_of_two_processes() -> None:
    second = reply(step_s=(0.04,), peak_bytes=2**29, data_share=0.5)
    rows = by_end(list(rows_of(series("mlp", "flatout", reply(), second), {"fp32": 1e11})))
    assert rows["step_s"].id == "run/mlp/flatout/cpu/step_s"
    assert rows["step_s"].samples == (0.01, 0.02, 0.04) and not rows["step_s"].is_higher_better
    assert rows["samples_per_s"].samples == (6400, 3200, 1600)
    assert rows["mfu"].samples == pytest.approx((0.64, 0.32, 0.16))
    assert rows["peak_memory"].samples == (2**28, 2**29)
    assert rows["data_wait_share"].samples == (0.25, 0.5)
    assert rows["loss"].conditions["steps"] == rows["time_to_steps"].conditions["steps"] == "500"
    assert rows["energy"].unread == "not readable: no counters"
    assert rows["host_share"].unread and "accuracy" not in rows
    conditions = rows["step_s"].conditions
    assert conditions["memory_bytes"] == str(2**29) and conditions["recipe"] == "precision=bf16"
    assert conditions["flops_per_step"] == "6.4e+08"


def test_rows_of_text_are_in_tokens() -> None:
    rows = by_end(list(rows_of(series("charlm", "plain", reply(tokens_per_sample=64)), NO_LIMITS)))
    assert rows["tokens_per_s"].samples == (64 * 64 / 0.01, 64 * 64 / 0.02)
    assert rows["tokens_per_s"].unit == "tokens/s" and "samples_per_s" not in rows


def test_mfu_says_what_is_missing() -> None:
    def unread(one: WorkloadMeasured, limits: dict[str, float] | str) -> str | None:
        return by_end(list(rows_of(series("mlp", "plain", one), limits)))["mfu"].unread

    assert unread(reply(), NO_LIMITS) == NO_LIMITS
    assert "no matrix product in bf16" in (unread(reply(dtype="bf16"), {"fp32": 1.0}) or "")
    no_flops = reply(flops_per_step=None, not_counted="FLOPs not counted: no kernel")
    assert unread(no_flops, {"fp32": 1.0}) == "FLOPs not counted: no kernel"


def test_rows_when_batches_are_not_whole() -> None:
    short = reply(mean_samples=(48.0, 64.0))
    rows = by_end(list(rows_of(series("mlp", "plain", short), {"fp32": 1e11})))
    assert rows["samples_per_s"].samples == (4800, 3200)
    assert rows["mfu"].samples == pytest.approx((0.48, 0.32))
    assert rows["step_s"].conditions["flops_per_step"] == "5.6e+08"
    assert rows["step_s"].conditions["samples_per_step"] == "56"


def test_rows_when_one_process_failed() -> None:
    rows = list(rows_of(series("mlp", "plain", reply(), reply(), problem="killed"), NO_LIMITS))
    assert rows and all(row.unread == "killed" and not row.samples for row in rows)


def test_host_share_that_is_not_known_has_its_reason() -> None:
    one = reply(no_host_share="the host waits for copies from pageable memory")
    rows = by_end(list(rows_of(series("mlp", "plain", one), NO_LIMITS)))
    assert rows["host_share"].unread == one.no_host_share


def test_rows_when_nothing_could_be_measured() -> None:
    rows = list(rows_of(series("mlp", "plain", problem="out of memory"), NO_LIMITS))
    assert rows and all(row.unread == "out of memory" and not row.samples for row in rows)


def test_zero_is_a_reason_and_not_a_sample() -> None:
    one = reply(data_share=0.0, accuracy=0.0)
    rows = by_end(list(rows_of(series("resnet50", "plain", one), NO_LIMITS)))
    assert rows["data_wait_share"].samples == () and rows["data_wait_share"].unread
    assert rows["accuracy"].samples == () and rows["accuracy"].unread


# Summaries.


def steps(middle: float, **changes: Any) -> list[WorkloadMeasured]:
    times = tuple(middle * (1 + 0.01 * number) for number in range(5))
    return [reply(step_s=times, **changes) for _ in range(2)]


def test_summary_has_the_speedup() -> None:
    file = run_file(series("mlp", "plain", *steps(0.03)), series("mlp", "flatout", *steps(0.01)))
    [summary] = summaries(file)
    assert (summary.workload, summary.device, list(summary.rows)) == (
        "mlp", "cpu", ["plain", "flatout"]
    )  # fmt: skip
    assert summary.speedup is not None and 2.8 < summary.speedup.low < 3 < summary.speedup.high
    [alone] = summaries(run_file(series("mlp", "plain", *steps(0.03))))
    assert alone.speedup is None


@pytest.mark.parametrize(
    ("gpu_s", "words"),
    [
        (0.001, "the GPU is 10"), (0.05, "use the CPU (2 cores): it is"),
        (0.01, "cannot tell whether"),
    ],
)  # fmt: skip
def test_gpu_ratio_says_which_to_use(gpu_s: float, words: str) -> None:
    gpu = series("mlp", "flatout", *steps(gpu_s), device="cuda:0")
    [ratio] = gpu_ratios(run_file(series("mlp", "flatout", *steps(0.01)), gpu))
    assert ratio.workload == "mlp" and ratio.text.startswith(words)


@pytest.mark.parametrize(
    ("num_processes", "other_cpus", "ratio", "verdict"),
    [
        ("3", 0.0, 1.1, "faster"), ("1", 0.0, 1.1, "cannot tell"), ("1", 0.0, 1.5, "faster"),
        ("1", 2.0, 2.0, "cannot tell"), ("1", 2.0, 0.1, "slower"), ("3", 2.0, 0.5, "slower"),
    ],
)  # fmt: skip
def test_single_processes_tell_only_large_differences(
    num_processes: str, other_cpus: float, ratio: float, verdict: str
) -> None:
    state = msgspec.structs.replace(STATE, other_cpus=other_cpus)
    settings = {"num_processes": num_processes}
    file = msgspec.structs.replace(run_file(), began=state, ended=state, settings=settings)
    interval = Interval(middle=ratio, low=0.98 * ratio, high=1.02 * ratio)
    assert verdict_of(interval, file) == verdict


def test_gpu_ratio_names_different_batches() -> None:
    cpu = series("resnet50", "flatout", *steps(1.0, samples_per_step=2))
    gpu = series("resnet50", "flatout", *steps(0.1, samples_per_step=256), device="cuda:0")
    [ratio] = gpu_ratios(run_file(cpu, gpu))
    assert "(batches of 256; 2 on the CPU)" in ratio.text
    assert list(gpu_ratios(run_file(cpu))) == []


def test_hostile_ids_and_settings_are_no_summary() -> None:
    rows = (
        BenchRow(id="run/a", label="", unit="s"),
        BenchRow(id="limits/a/b/c/d", label="", unit="s"),
    )
    file = msgspec.structs.replace(run_file(), rows=rows, settings={"num_processes": "9" * 99})
    assert summaries(file) == [] and report_run.sections([loaded(file, "a", "a")]) == ""


def test_epoch_is_of_the_published_network_only() -> None:
    [resnet] = summaries(run_file(series("resnet50", "plain", *steps(0.5, samples_per_step=2))))
    times = epoch_times(resnet)
    assert times is not None and times.text == "an epoch of ImageNet"
    speed = resnet.speed("plain")
    assert speed is not None
    assert times.seconds == {"plain": pytest.approx(1_281_167 / median(speed.samples))}
    for name in ("bert-large", "mlp"):
        [small] = summaries(run_file(series(name, "plain", *steps(1.0))))
        assert epoch_times(small) is None


def test_every_epoch_has_a_source() -> None:
    epochs = [one.epochs for one in WORKLOADS.values() if one.epochs is not None]
    assert len(epochs) == 5 and all(one.source and one.amount > 1e4 for one in epochs)


def test_ladder_of_a_search_is_shown_and_is_no_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = []
    for speed in ("1,020", "1,040"):
        tuned = series("mlp", "flatout", *steps(0.01))
        tuned.ladder = f"plain loop {speed} samples/s; + <b> x3.25 [3.19, 3.31]"
        files.append(run_file(series("mlp", "plain", *steps(0.03)), tuned))
    print_run(files[0], out=None, html=None)
    assert "+ <b> x3.25 [3.19, 3.31]" in capsys.readouterr().out
    both = [loaded(file, name, name) for file, name in zip(files, "ab", strict=True)]
    html = report_run.sections(both)
    assert "+ &lt;b&gt; x3.25" in html and "<b>" not in html
    assert not any(row.note for row in compare.compare(both).rows)


def test_memory_beyond_the_gpus_is_a_spill() -> None:
    gpu = Machine(gpus=(Gpu(index=0, memory_bytes=8 * 2**30),))
    for peak_bytes, num in ((9 * 2**30, 1), (7 * 2**30, 0)):
        one = series("mlp", "plain", reply(peak_bytes=peak_bytes), device="cuda:0")
        rows = list(rows_of(one, NO_LIMITS))
        warnings = list(spill_warnings(rows, gpu))
        assert len(warnings) == num and all("9.0 GiB of 8.0 GiB" in text for text in warnings)
        # Of an unknown size, nothing can be said.
        assert list(spill_warnings(rows, Machine(gpus=(Gpu(index=0),)))) == []
    on_cpu = list(rows_of(series("mlp", "plain", reply(peak_bytes=9 * 2**30)), NO_LIMITS))
    assert list(spill_warnings(on_cpu, gpu)) == []


def test_number_of_cores_that_is_too_long_is_unknown() -> None:
    gpu = series("mlp", "flatout", *steps(0.001), device="cuda:0")
    file = run_file(series("mlp", "flatout", *steps(0.01)), gpu)
    # Python refuses to read a number of more than 4,300 digits.
    file = msgspec.structs.replace(file, settings={**file.settings, "cores": "9" * 5000})
    [ratio] = gpu_ratios(file)
    assert ratio.text == "the GPU is 10 times as fast as an unknown CPU"


def test_busy_machine_widens_the_ratio_to_each_turn() -> None:
    # In the second turn, other programs disturbed flatout and not the plain loop.
    turns = [steps(0.01)[0], steps(0.025)[0], steps(0.01)[0]]
    file = run_file(
        series("mlp", "plain", *steps(0.03), steps(0.03)[0]), series("mlp", "flatout", *turns)
    )
    file = msgspec.structs.replace(file, settings={**file.settings, "num_processes": "3"})
    [quiet] = summaries(file)
    state = msgspec.structs.replace(STATE, other_cpus=1.5)
    [busy] = summaries(msgspec.structs.replace(file, began=state, ended=state))
    assert quiet.speedup is not None and busy.speedup is not None
    assert busy.speedup.middle == quiet.speedup.middle
    assert busy.speedup.low <= min(quiet.speedup.low, 1.2)
    assert busy.speedup.high >= max(quiet.speedup.high, 3.0)


# References.


def test_every_reference_has_its_source_and_what_makes_it_comparable() -> None:
    for one in shipped_references():
        workload = WORKLOADS[one.workload]
        assert one.source and one.comparable and one.settings and one.at[:2] == "20"
        assert (one.value is None) == (one.unit is None) == (one.figure is not None)
        # In the unit of our rows, or they could not be shown next to each other.
        assert one.unit in (None, "tokens/s" if workload.has_tokens else "samples/s")


def test_the_figures_of_the_wsl2_benchmark_are_there() -> None:
    texts = [one.text for one in references_for("mnist-wsl2")]
    assert any("18 %" in text for text in texts) and any("10 to 12" in text for text in texts)
    assert references_for("resnet50")[0].text == "7,980 samples/s"


# What is shown.


def test_report_escapes_and_shows_step_times() -> None:
    plain, tuned = (
        series("resnet50", "plain", *steps(3.0)),
        series("resnet50", "flatout", *steps(1.0)),
    )
    tuned.recipe = "<script>alert(1)</script>"
    html = report_run.sections([loaded(run_file(plain, tuned), "<b>", "a.json")])
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "Step times" in html and html.count('class="dot"') == 20
    assert ">faster<" in html and "7,980 samples/s" in html


def test_box_plot_when_all_samples_are_equal() -> None:
    assert "nan" not in report_run.box_plot([2.0] * 5, (2.0 / 1.02, 2.0 * 1.02))


def test_print_run_shows_ways_reasons_and_references(capsys: pytest.CaptureFixture[str]) -> None:
    file = run_file(
        series("resnet50", "plain", *steps(3.0)),
        series("resnet50", "flatout", *steps(1.0, accuracy=0.5)),
    )
    print_run(file, out="a.json", html=None)
    shown = capsys.readouterr().out
    for text in (
        "resnet50", "plain", "x3.00", "of the plain loop: faster", "precision=bf16", "a.json",
        "3 steps after", "energy: not readable: no counters", "7,980 samples/s",
    ):  # fmt: skip
        assert text in shown, text


def test_paths_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for option in ("--out", "--html"):
        words = ["bench", "run", "mlp", option, str(tmp_path / "missing" / "a")]
        result = CliRunner().invoke(main, words)
        assert isinstance(result.exception, UsageError)
        assert result.exception.rule == "bench-report-not-writable"
        assert option in (result.exception.fix or "")


# Energy of CPUs.


def zone(folder: Path, name: str, energy: str, most: str = "1000000") -> Path:
    path = folder / name
    path.mkdir()
    (path / "energy_uj").write_text(energy)
    (path / "max_energy_range_uj").write_text(most)
    return path


def test_rapl_counts_packages_and_overflows(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "900000\n")
    zone(tmp_path, "intel-rapl:1", "0\n")
    zone(tmp_path, "intel-rapl:0:0", "5\n")
    counter = rapl_counter(tmp_path)
    assert isinstance(counter, RaplCounter) and counter.joules() == 0
    (first / "energy_uj").write_text("100000\n")
    assert counter.joules() == pytest.approx(0.2)


def test_rapl_when_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no RAPL counters" in str(rapl_counter(tmp_path))
    zone(tmp_path, "intel-rapl:0", "many\n")
    assert str(rapl_counter(tmp_path)).startswith("not readable: invalid literal")

    def refused(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    assert rapl_counter(tmp_path) == "not readable: RAPL counters are for root only"


# Children.

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script as an interpreter")


def fake_python(folder: Path, plain: str, tuned: str) -> str:
    """An interpreter that finds a recipe, and does the rest as these lines of a shell say."""
    found = RecipeChosen(changes={"num_threads": 1}, text="num_threads=1 (stored by a search)")
    (folder / "recipe").write_text(f"{msgspec.json.encode(found).decode()}\n")
    (folder / "measured").write_text(f"{msgspec.json.encode(reply()).decode()}\n")
    path = folder / "python"
    path.write_text(
        "#!/bin/sh\nread request\n"
        f'echo "$request" | cut -c1-200 | sed \'s/.*"changes":\\(....\\).*/\\1/\' >> {folder}/log\n'
        f'case "$request" in *\'"type":"recipe"\'*) cat {folder}/recipe;;\n'
        f"*'\"changes\":null'*) {plain};;\n*) {tuned};;\nesac\n"
    )
    path.chmod(0o755)
    return str(path)


def measured(python: str) -> tuple[list[Doing], BenchFile]:
    effort = msgspec.structs.replace(QUICK_RUN, num_processes=2)
    *doing, file = Measurement(python, CPU, ["cpu"], effort).run([WORKLOADS["mlp"]], ("skipped",))
    assert isinstance(file, BenchFile)
    return [one for one in doing if isinstance(one, Doing)], file


@posix
def test_processes_of_both_ways_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    cat = f"cat {tmp_path}/measured"
    doing, file = measured(fake_python(tmp_path, cat, cat))
    order = [one.what.partition(": ")[2].partition(",")[0] for one in doing[1:]]
    assert order == ["plain", "flatout", "flatout", "plain"]
    assert [one.done for one in doing] == [0.0, 0.2, 0.4, 0.6, 0.8]
    rows = {row.id: row for row in file.rows}
    assert rows["run/mlp/flatout/cpu/step_s"].samples == (0.01, 0.02, 0.01, 0.02)
    assert "stored by a search" in rows["run/mlp/flatout/cpu/step_s"].conditions["recipe"]
    assert file.kind == "run" and file.machine.python is None and "skipped" in file.warnings
    assert file.settings["num_processes"] == "2" and file.versions["torch"] == "2.13.0"
    assert msgspec.json.decode(msgspec.json.encode(file), type=BenchFile) == file


@posix
def test_way_that_dies_is_unread_and_the_other_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    _, file = measured(fake_python(tmp_path, "kill -9 $$", f"cat {tmp_path}/measured"))
    rows = {row.id: row for row in file.rows}
    assert rows["run/mlp/plain/cpu/step_s"].unread == "its process was killed by SIGKILL"
    assert rows["run/mlp/flatout/cpu/step_s"].samples


def test_efforts_measure_enough_for_an_interval() -> None:
    for effort in (FULL_RUN, QUICK_RUN):
        assert effort.num_processes * effort.num_blocks >= 5
        assert effort.settings["effort"] == effort.name


@posix
def test_file_is_written_after_each_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    cat = f"cat {tmp_path}/measured"
    measurement = Measurement(fake_python(tmp_path, cat, cat), CPU, ["cpu"], QUICK_RUN)
    values = list(measurement.run([WORKLOADS["mlp"], WORKLOADS["resnet50"]], ()))
    files = [value for value in values if isinstance(value, BenchFile)]
    assert [{row.id.split("/")[1] for row in file.rows} for file in files] == [
        {"mlp"}, {"mlp", "resnet50"}
    ]  # fmt: skip


@posix
def test_limits_of_a_busy_machine_give_no_mfu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    product = BenchRow(id="limits/matmul/fp32", label="", unit="flop/s", samples=(1e12,) * 5)
    cat, mfus = f"cat {tmp_path}/measured", []
    for other_cpus in (0.0, 2.0):
        state = msgspec.structs.replace(STATE, other_cpus=other_cpus)
        limits = BenchFile(
            kind="limits", flatout="1", machine=CPU, began=state, ended=state, rows=(product,)
        )
        monkeypatch.setattr(api, "known_limits", lambda *_, found=limits: found)
        _, file = measured(fake_python(tmp_path, cat, cat))
        mfus.append(next(row for row in file.rows if row.id == "run/mlp/plain/cpu/mfu"))
    assert mfus[0].samples[0] == pytest.approx(6.4e8 / 0.01 / 1e12)
    assert mfus[1].unread == BUSY_LIMITS
