"""Predictions for other cards: the model, the tables, prices and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.bench import card_model, cards
from flatout.bench.card_model import PeakRates
from flatout.bench.card_tables import shipped_cards, shipped_providers, shipped_series
from flatout.bench.measured_step import measured_step
from flatout.bench.prices import known_name, prices_from
from flatout.cli.render.show_bench_cards import print_cards
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_cards import CardPrediction, CardsReport
from flatout.schema.machine import Cpu, Gpu, Machine

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
STATE = DeviceState(at="2026-11-24T16:00:00Z")


def run_file(
    device: str = "cuda", card: str = A100, step_s: float = 0.1, **conditions: str
) -> BenchFile:
    prefix = f"run/resnet50/flatout/{device}"
    conditions = {
        "dtype": "bf16", "flops_per_step": "6.3e12", "parameters": "25.6e6", "batch_size": "256",
        "samples_per_step": "256", "device": device, "size": "224 x 224 pixels", **conditions,
    }  # fmt: skip

    def row(name: str, unit: Any, value: float) -> BenchRow:
        return BenchRow(
            id=f"{prefix}/{name}", label=name, unit=unit, samples=(value,) * 5,
            conditions=conditions,
        )  # fmt: skip

    rows = (
        row("step_s", "s", step_s), row("samples_per_s", "samples/s", 256 / step_s),
        row("host_share", "share", 0.1), row("peak_memory", "B", 30 * 2**30),
    )  # fmt: skip
    gpus = (Gpu(index=0, name=card),) if device == "cuda" else ()
    return BenchFile(
        kind="run", flatout="1", machine=Machine(cpu=Cpu(name="a CPU", num_threads=8), gpus=gpus),
        began=STATE, ended=STATE, rows=rows,
    )  # fmt: skip


def report(folder: Path, file: BenchFile, **more: Any) -> CardsReport:
    path = folder / "run.json"
    path.write_bytes(msgspec.json.encode(file))
    return cards.cards(cards.CardsRequest(workload="resnet50", file=str(path), **more))


def card(found: CardsReport, short: str, num: int = 1) -> CardPrediction:
    return next(one for one in found.cards if (one.short, one.num_devices) == (short, num))


# The model.


def test_step_is_carried_over_part_by_part() -> None:
    here, there = PeakRates(flops=1e14, memory=1e12), PeakRates(flops=4e14, memory=2e12)
    parts = card_model.step_parts(1.0, 4e13, 0.2, here)
    assert (parts.host, parts.compute) == (0.2, 0.4) and parts.memory == pytest.approx(0.6)
    assert card_model.moved(parts, here, there).total == pytest.approx(0.1 + 0.3)
    assert card_model.moved(parts, here, here).total == pytest.approx(1.0)


def test_step_faster_than_its_peak_is_all_compute() -> None:
    parts = card_model.step_parts(1.0, 9e14, 0.0, PeakRates(flops=1e14, memory=1e12))
    assert (parts.compute, parts.memory) == (1.0, 0.0)


def test_held_out_figures_are_within_the_interval() -> None:
    held_out = [one for one in shipped_series() if one.is_held_out]
    errors = card_model.pair_errors(held_out)
    assert len(errors) >= 12
    inside = [
        max(one.predicted / one.published, one.published / one.predicted)
        <= card_model.transfer_error(one.workload)
        for one in errors
    ]
    assert sum(inside) >= 0.9 * len(inside)
    widest = card_model.transfer_error("a model of one's own")
    assert 1.1 < card_model.transfer_error("bert-large") < widest < 1.8


def test_several_gpus_scale_no_better_than_their_number() -> None:
    for num in (2, 4, 8):
        share = card_model.scaling(num)
        assert 0.3 < share.low <= share.middle <= share.high == 1.0
    assert card_model.all_reduce_s(1e9, 2, 4e9) == pytest.approx(1.0)


# The tables.


def test_every_card_has_peaks_and_a_source() -> None:
    for one in shipped_cards().values():
        assert one.peak.name == one.name and one.source
        assert 100 <= one.watts <= 1200 and 8 <= one.memory_gib <= 200
        assert one.peak.memory and one.peak.fp16


def test_every_instance_and_figure_is_of_a_known_card() -> None:
    instances = [one for provider in shipped_providers() for one in provider.instances]
    assert {one.card for one in instances} <= shipped_cards().keys()
    assert len({one.name for one in instances}) == len(instances) >= 30
    for one in shipped_series():
        assert one.samples_per_s.keys() <= shipped_cards().keys() and one.source
        assert len(one.samples_per_s) > 1 or one.num_devices > 1


# From files.


def test_card_is_predicted_as_it_was_measured(tmp_path: Path) -> None:
    found = report(tmp_path, run_file())
    same, faster = card(found, "A100 SXM 80GB"), card(found, "H100 SXM")
    assert same.throughput is not None and faster.throughput is not None
    assert same.throughput.middle == pytest.approx(2560) and same.ratio == pytest.approx(1.0)
    assert same.throughput.low < 2560 < same.throughput.high
    assert 3.35 / 2.039 < (faster.ratio or 0) < 989.5 / 312
    assert found.cards == tuple(
        sorted(found.cards, key=lambda one: -(one.throughput.middle if one.throughput else 0))
    )
    assert card(found, "V100 16GB").unread == "does not compute in bf16"
    assert card(found, "RTX 4090").does_fit is False and faster.does_fit is True


def test_step_is_no_shorter_than_its_host_needs(tmp_path: Path) -> None:
    bound = run_file()
    rows = [
        msgspec.structs.replace(row, samples=(0.95,) * 5) if row.id.endswith("host_share") else row
        for row in bound.rows
    ]
    found = report(tmp_path, msgspec.structs.replace(bound, rows=tuple(rows)))
    assert card(found, "H100 SXM").ratio == pytest.approx(1 / 0.95)
    assert any("the host is busy in 95 %" in note for note in found.notes)


def test_cpu_measurement_says_how_wide_it_is(tmp_path: Path) -> None:
    found = report(tmp_path, run_file(device="cpu", step_s=60.0))
    one = card(found, "H100 SXM").throughput
    assert one is not None and one.high / one.low > 3
    peak = 989.5e12 * 256 / 6.3e12
    assert 0.05 * peak < one.low < one.middle < one.high < 0.4 * peak
    assert "measured on a CPU" in found.how and "of resnet50" in found.how
    assert card(found, "H100 SXM").does_fit is None


def test_other_dtype_is_predicted_from_flops_only(tmp_path: Path) -> None:
    found = report(tmp_path, run_file(), dtype="fp16")
    assert "measured in bf16, predicted in fp16" in found.how and found.parts is None
    assert card(found, "V100 16GB").throughput is not None


def test_short_steps_are_not_predicted_from_flops(tmp_path: Path) -> None:
    found = report(tmp_path, run_file(device="cpu", step_s=0.01, flops_per_step="1e9"))
    one = card(found, "H100 SXM")
    assert one.throughput is None and one.at_most == pytest.approx(256 * 989.5e12 / 1e9)
    assert any("launches" in note for note in found.notes)


def test_unknown_card_without_limits_is_predicted_from_flops_only(tmp_path: Path) -> None:
    found = report(tmp_path, run_file(card="NVIDIA GeForce RTX 3070 Laptop GPU"))
    assert "no peaks are known of NVIDIA GeForce RTX 3070 Laptop GPU" in found.how


def test_network_of_another_size_is_predicted_as_any_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published, small = (
        report(tmp_path, run_file(device="cpu", size=size))
        for size in ("224 x 224 pixels", "64 x 64 pixels")
    )
    assert "of resnet50" in published.how and "of all models" in small.how
    assert not any("not the published" in note for note in published.notes)
    assert any("not the published resnet50 (64 x 64 pixels)" in note for note in small.notes)
    print_cards(small)
    assert "resnet50 · 64 x 64 pixels · batch 256" in capsys.readouterr().out


def test_measured_limits_of_the_same_gpu_widen_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        BenchRow(id=id, label="", unit="flop/s", samples=(value,))
        for id, value in (("limits/matmul/bf16", 2e14), ("limits/memory/triad", 1.5e12))
    ]
    limits = msgspec.structs.replace(run_file(), kind="limits", rows=tuple(rows))
    asked = []

    def known_limits(machine: Machine, device: str) -> BenchFile:
        asked.append(device)
        return limits

    monkeypatch.setattr(cards.bench_api, "known_limits", known_limits)
    known, unknown = (report(tmp_path, run_file(card=name)) for name in (A100, "a card"))
    assert asked == ["cuda"] and "measured limits" in unknown.how
    assert unknown.error == pytest.approx(known.error / card_model.LEAST_SHARE_OF_PEAK)
    assert any("shown too fast" in note for note in unknown.notes)


def test_several_gpus_and_prices(tmp_path: Path) -> None:
    found = report(
        tmp_path, run_file(), num_devices=(1, 8), prices=("H100 SXM=2", "p5.48xlarge=55.04")
    )
    one, eight = card(found, "H100 SXM"), card(found, "H100 SXM", 8)
    assert one.throughput and eight.throughput and one.per_price and eight.price_per_hour == 16
    assert 7 < eight.throughput.middle / one.throughput.middle <= 8
    assert eight.throughput.low < 6 * one.throughput.low
    assert one.per_price.middle == pytest.approx(one.throughput.middle * 3600 / 2)
    cloud = next(row for row in found.instances if row.instance == "p5.48xlarge")
    assert cloud.per_price is not None and cloud.provider == "AWS"
    assert next(row for row in found.instances if row.instance == "p4d.24xlarge").per_price is None


@pytest.mark.parametrize(
    ("file", "workload", "rule"),
    [
        (run_file(), "mlp", "bench-workload-not-measured"),
        (run_file(flops_per_step="many"), "resnet50", "bench-step-without-flops"),
        (run_file(flops_per_step="nan"), "resnet50", "bench-step-without-flops"),
        (run_file(flops_per_step="-1"), "resnet50", "bench-step-without-flops"),
        (run_file(flops_per_step="5e-324"), "resnet50", "bench-step-without-flops"),
    ],
)
def test_file_without_what_is_needed(file: BenchFile, workload: str, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        measured_step(file, workload)
    assert caught.value.rule == rule


def test_step_of_a_hostile_file_has_no_card() -> None:
    for device in ("cuda:99", "cuda:-1", "cuda:x", "cuda:" + 9 * "9"):
        file = run_file()
        rows = [
            msgspec.structs.replace(row, conditions={**row.conditions, "device": device})
            for row in file.rows
        ]
        step = measured_step(msgspec.structs.replace(file, rows=tuple(rows)), "resnet50")
        assert step.card is None and step.device_name in ("cuda", "cuda:99")


# Prices.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100 SXM", H100), ("h100 sxm", H100), (H100, H100), ("P5.48xlarge", "p5.48xlarge"),
        ("4090", None), ("RTX 4090", "NVIDIA GeForce RTX 4090"), ("H100", None), ("", None),
    ],
)  # fmt: skip
def test_name_is_whole(text: str, name: str | None) -> None:
    if name is not None:
        assert known_name(text) == name
        return
    with pytest.raises(UsageError) as caught:
        known_name(text)
    assert caught.value.rule == "bench-unknown-card"


@pytest.mark.parametrize("text", ["H200", "H200=", "H200=free", "H200=-1", "H200=nan", "H200=inf"])
def test_bad_price(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        prices_from([text], None)
    assert caught.value.rule == "bench-bad-price"


def test_prices_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('read = 2026-11-20\n[prices]\n"H200" = 3.5\n"p4d.24xlarge" = 22\n')
    found, origin = prices_from(["H200=3"], str(path))
    assert found == {"NVIDIA H200": 3.0, "p4d.24xlarge": 22.0}
    assert origin == "prices.toml, read 2026-11-20"


@pytest.mark.parametrize("text", ["[prices]\nH200 = 3.5\n", "read = 1\n", "{", "\xff", None])
def test_bad_file_of_prices(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as caught:
        prices_from([], str(path))
    assert caught.value.rule == "bench-bad-price"


# What is shown.


def test_report_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_cards(report(tmp_path, run_file(), num_devices=(1, 2), prices=("H200=2.5",)))
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    [h200] = [line for line in lines if line.startswith("H200") and " 1 " in line[:20]]
    assert "2.50" in h200 and "yes, 140 GiB" in h200 and "700 W" in h200
    assert "FLOPs at the peak 20 %" in shown and "busy meanwhile 10 %" in shown
    assert "does not compute in bf16" in shown and "to both sides: 9 of 10" in shown


def test_instances_are_shown_within_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_cards(report(tmp_path, run_file(dtype="fp16")))
    shown = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(shown) if line.startswith("instance"))
    table = shown[start : shown.index("", start)]
    assert len(table) > 20 and max(len(line.rstrip()) for line in table) <= 80


def test_no_table_of_what_no_card_reaches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(tmp_path, run_file(device="cpu", step_s=0.01, flops_per_step="1e6"))
    assert all(one.throughput is None for one in found.cards)
    print_cards(found)
    shown = capsys.readouterr().out
    assert "predicted" in shown and "nothing: see the notes" in shown
    assert "made of launches" in shown and "H200" not in shown
