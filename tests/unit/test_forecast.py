"""What a training would take on many workers, from made-up steps."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from flatout.cluster.model.scaling_model import (
    Link,
    Rates,
    WorkerStep,
    all_reduce_s,
    forecast,
    forecasts,
    measured_step,
    parse_energy_price,
    parse_link,
    parse_power,
    parse_price,
    parse_workers,
)
from flatout.errors import UsageError

# 100 million parameters: 400 MB of gradients, 0.32 s over 10 Gbit/s.
STEP = WorkerStep(
    shared_s=0.9,
    backward_s=0.6,
    optimizer_s=0.1,
    samples=64,
    micro_batch_size=64,
    samples_per_epoch=6400,
    num_parameters=100_000_000,
)
LINK = Link(bits_per_s=10e9, latency_s=0.0)


def test_all_reduce_sends_nearly_twice_the_gradients() -> None:
    assert all_reduce_s(400_000_000, 1, LINK) == 0
    assert all_reduce_s(400_000_000, 2, LINK) == pytest.approx(0.32)
    assert all_reduce_s(400_000_000, 1000, LINK) == pytest.approx(0.64 * 0.999)
    slow = Link(bits_per_s=10e9, latency_s=1e-3)
    assert all_reduce_s(0, 8, slow) == pytest.approx(14e-3)


def test_one_worker_is_what_was_measured() -> None:
    found = forecast([STEP], 1, LINK, "strong", Rates())
    assert found.step_s == pytest.approx(1.0)
    assert found.efficiency == found.most_efficiency == pytest.approx(1.0)
    assert found.samples_per_s == pytest.approx(64)
    assert found.epoch_s == pytest.approx(100)
    assert found.cost is None


def test_strong_scaling_shares_the_batch() -> None:
    found = forecast([STEP], 2, LINK, "strong", Rates(price_per_hour=3.6))
    # 0.45 s of the samples' part, the optimizer's 0.1 s, the all-reduce's 0.32 s.
    assert found.step_s == pytest.approx(0.87)
    assert found.samples_per_s == pytest.approx(64 / 0.87)
    assert found.efficiency == pytest.approx(1 / 0.87 / 2)
    # Backward takes 0.3 s: so much of the all-reduce can be hidden.
    assert found.most_efficiency == pytest.approx(1 / 0.57 / 2)
    assert found.epoch_s == pytest.approx(87)
    assert found.cost == pytest.approx(2 * 3.6 * 87 / 3600)


def test_shares_take_as_long_as_micro_batches_of_their_size() -> None:
    # The same 64 samples in forward passes of 32, which are slower by the sample.
    halves = msgspec.structs.replace(STEP, shared_s=1.2, backward_s=0.8, micro_batch_size=32)
    steps = [STEP, halves]
    link = Link(bits_per_s=1e18, latency_s=0.0)
    here, two, three, four = forecasts(steps, [2, 3, 4], link, "strong", Rates())
    assert here.step_s == pytest.approx(1.0)
    assert two.step_s == pytest.approx(1.2 / 2 + 0.1)
    # A third of the batch is fewer than 32, of which no run tells: as fast by the sample as those.
    assert three.step_s == pytest.approx(1.2 / 3 + 0.1)
    assert [row.is_shown for row in (here, two, three, four)] == [True, True, False, False]
    assert [row.samples for row in (here, two, three, four)] == [64, 32, 22, 16]
    uneven = msgspec.structs.replace(STEP, samples=62.5)
    assert forecast([uneven], 1, link, "strong", Rates()).is_shown
    alone = forecasts([STEP], [2], link, "strong", Rates())[1]
    assert (alone.is_shown, alone.step_s) == (False, pytest.approx(0.55))
    # With weak scaling each has the whole batch.
    assert forecast(steps, 8, link, "weak", Rates()).step_s == pytest.approx(1.0)


def test_weak_scaling_gives_each_worker_a_batch() -> None:
    found = forecast([STEP], 8, LINK, "weak", Rates())
    reduce_s = 2 * 7 / 8 * 0.32
    assert found.step_s == pytest.approx(1 + reduce_s)
    assert found.samples_per_s == pytest.approx(8 * 64 / (1 + reduce_s))
    assert found.efficiency == pytest.approx(1 / (1 + reduce_s))
    assert found.most_efficiency == pytest.approx(1.0)
    # Twelve steps and a half are thirteen.
    assert found.epoch_s == pytest.approx(13 * (1 + reduce_s))


def test_more_workers_than_samples_have_no_numbers() -> None:
    found = forecast([STEP], 65, LINK, "strong", Rates(price_per_hour=1.0))
    assert (found.step_s, found.efficiency, found.cost) == (None, None, None)
    assert forecast([STEP], 64, LINK, "strong", Rates(price_per_hour=1.0)).step_s is not None


def test_rows_begin_with_what_was_measured_and_cost_nothing_there() -> None:
    rows = forecasts([STEP], [1, 2, 8], LINK, "strong", Rates(price_per_hour=2.5))
    assert [row.workers for row in rows] == [1, 2, 8]
    assert rows[0].cost is None
    assert rows[1].cost is not None


def test_energy_is_what_all_workers_draw_and_costs_where_none_is_rented() -> None:
    own = Rates(power_w=500.0, price_per_kwh=0.3)
    here, both = forecasts([STEP], [2], LINK, "strong", own)
    # 100 s at 500 W are 50 kJ; two workers take 87 s.
    assert here.energy_kwh == pytest.approx(50 / 3600)
    assert both.energy_kwh == pytest.approx(2 * 0.5 * 87 / 3600)
    assert both.cost == pytest.approx(0.3 * 2 * 0.5 * 87 / 3600)
    rented = Rates(power_w=500.0, price_per_kwh=0.3, price_per_hour=3.6)
    here, both = forecasts([STEP], [2], LINK, "strong", rented)
    # A rent has the energy in it; this machine is not rented.
    assert here.cost == pytest.approx(0.3 * 50 / 3600)
    assert both.cost == pytest.approx(2 * 3.6 * 87 / 3600)
    assert forecast([STEP], 2, LINK, "strong", Rates(price_per_kwh=0.3)).cost is None


def test_measured_step_is_the_mean_of_a_run() -> None:
    split = {"data": 1.0, "forward": 3.0, "backward": 5.0, "optimizer": 1.0, "validation": 9.0}
    found = measured_step(split, 100, 6400, 100, 7, 64)
    assert found is not None
    assert (found.shared_s, found.backward_s, found.optimizer_s) == (0.09, 0.05, 0.01)
    assert (found.samples, found.micro_batch_size) == (64, 64)
    assert measured_step({"validation": 1.0}, 100, 6400, 100, 7, 64) is None


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10Gbps", 10e9), ("400 Gbit/s", 400e9), ("900Mbps", 9e8), ("2.5Gb/s", 2.5e9)],
)
def test_links_as_they_are_sold(text: str, bits: float) -> None:
    assert parse_link(text, 50).bits_per_s == bits


def test_prices_and_workers_as_they_are_typed() -> None:
    assert [parse_price(text) for text in ("2.5/h", "2.5 / h", "3", None)] == [2.5, 2.5, 3, None]
    assert parse_workers("64, 8,8") == [8, 64]
    assert [parse_power(text) for text in ("350W", "1.2 kW", "90", None)] == [350, 1200, 90, None]
    assert [parse_energy_price(text) for text in ("0.3/kWh", "0.3", None)] == [0.3, 0.3, None]


@pytest.mark.parametrize(
    "parse",
    [
        lambda: parse_link("10GB/s", 50),
        lambda: parse_link("0Gbps", 50),
        lambda: parse_link("fast", 50),
        lambda: parse_link("10Gbps", -1),
        lambda: parse_link("10Gbps", float("nan")),
        lambda: parse_workers("8,,64"),
        lambda: parse_workers("0"),
        lambda: parse_workers("eight"),
        lambda: parse_price("cheap"),
        lambda: parse_price("-1/h"),
        lambda: parse_power("350 J"),
        lambda: parse_power("kW"),
        lambda: parse_energy_price("0.3/h"),
    ],
)
def test_what_cannot_be_read_is_reported(parse: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse()
    assert caught.value.rule == "bad-forecast"


def test_command_predicts_from_a_run_and_says_what_it_does_not_know(cli: Any) -> None:
    assert cli.run("cluster", "predict").returncode == 2
    assert cli.run(*cli.train()).returncode == 0
    done = cli.run("cluster", "predict", "--json")
    reported = json.loads(done.stdout)
    assert [row["workers"] for row in reported["rows"]] == [1, 2, 4, 8]
    assert reported["is_power_measured"] and reported["rates"]["power_w"] == 120
    given = cli.run("cluster", "predict", "--power", "1.5kW", "--energy-price", "0.3")
    assert "1,500 W" in given.stdout and "cost: give" not in given.stdout


def test_command_takes_shares_from_a_run_in_micro_batches_of_their_size(cli: Any) -> None:
    assert cli.run(*cli.train("--name", "whole")).returncode == 0
    before = cli.run("cluster", "predict", "whole", "--workers", "2,4")
    assert "4 images per worker (on 2 workers) are than 8" in before.stdout
    assert f"flatout train {cli.experiment} --tune off --use micro_batch_size=4" in " ".join(
        before.stdout.split()
    )
    assert cli.run(*cli.train("--use", "micro_batch_size=4")).returncode == 0
    # Another experiment's, by its parameters, tells nothing of this one.
    assert cli.run(*cli.train("--use", "micro_batch_size=2", pause=0.01)).returncode == 0
    done = cli.run("cluster", "predict", "whole", "--workers", "2,4", "--json")
    reported = json.loads(done.stdout)
    assert [one["micro_batch_size"] for one in reported["smaller"]] == [4]
    assert [row["is_shown"] for row in reported["rows"]] == [True, True, False]
    weak = cli.run("cluster", "predict", "whole", "--scaling", "weak", "--json")
    assert json.loads(weak.stdout)["smaller"] == []
