"""What is computed is what the experiment says, however a step is executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.session.session import build
from flatout.schema.run_lines import EpochEnded, Finished, Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
Batch = tuple[Tensor, ...]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def data(count: int = 50) -> Batch:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.randint(3, (count,), generator=dice)


def weighted_data(count: int = 50) -> Batch:
    """With a weight for each sample: none for many, so that some micro-batches count nothing."""
    inputs, labels = data(count)
    dice = torch.Generator().manual_seed(2)
    weights = torch.randint(-3, 6, (count,), generator=dice).clamp(min=0)
    return inputs, labels, weights


def weighted(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, labels, weights = batch
    losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    return (losses * weights).sum(), weights.sum()


def counted_in_python(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    total, count = weighted(model, batch)
    return total, float(count)


def slightly_weighted(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, labels, weights = batch
    return weighted(model, (inputs, labels, weights / 100))


def mean(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def reference(experiment: Experiment, sizes: list[int], average: float | None = None) -> nn.Module:
    """A plain loop over unshuffled batches of these sizes; with average, the averaged model."""
    built = build(experiment, 0, "cpu")
    model, optimizer = built.model, built.optimizers.given
    averages = [p.detach().clone() for p in model.parameters()]
    parts = zip(*(tensor.split(sizes) for tensor in experiment.train_data()), strict=True)
    for batch in parts:
        optimizer.zero_grad()
        value = experiment.loss(model, batch)
        loss = value[0] / max(value[1], 1e-9) if isinstance(value, tuple) else value
        loss.backward()
        if experiment.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), experiment.clip_norm)
        optimizer.step()
        for mean, parameter in zip(averages, model.parameters(), strict=True):
            mean.mul_(average or 0).add_(parameter.detach(), alpha=1 - (average or 0))
    for mean, parameter in zip(averages, model.parameters(), strict=True):
        parameter.data = mean
    return model


def assert_close(model: nn.Module, other: nn.Module, *, within: float = 1e-6) -> None:
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=within), (one - two).abs().max()


LOSSES: dict[str, dict[str, Any]] = {
    "mean": {"loss": mean, "train_data": data},
    "mean, clipped": {"loss": mean, "train_data": data, "clip_norm": 0.05},
    "sum and count": {"loss": weighted, "train_data": weighted_data},
    "sum and count, clipped": {"loss": weighted, "train_data": weighted_data, "clip_norm": 0.05},
    "sum and a number": {"loss": counted_in_python, "train_data": weighted_data},
    "sum and a count below one": {"loss": slightly_weighted, "train_data": weighted_data},
}


@pytest.mark.parametrize("micro", [8, 3, 1])
@pytest.mark.parametrize("name", LOSSES)
def test_accumulated_step_is_that_of_the_whole_batch(
    lab: Lab, plain: Plain, name: str, micro: int
) -> None:
    experiment = plain(
        **LOSSES[name], model=linear, optimizer=sgd, shuffle=False, epochs=1, validation_data=None
    )
    trained = lab.go_on(lab.new(micro_batch_size=micro), experiment)
    # 50 samples: six batches of 8, and one of 2 that is trained, too.
    assert_close(trained, reference(experiment, [8] * 6 + [2]))


def test_losses_are_means_over_the_samples(lab: Lab, tell: Tell, plain: Plain) -> None:
    def still(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    for micro in (8, 3):
        experiment = plain(
            model=linear,
            optimizer=still,
            loss=mean,
            train_data=data,
            validation_data=data,
            epochs=1,
        )
        folder = lab.new(micro_batch_size=micro)
        model = lab.go_on(folder, experiment)
        with torch.no_grad():
            expected = float(mean(model, data()))
        assert tell.metrics(folder, EpochEnded)[0].loss == pytest.approx(expected, rel=1e-5)
        [validated] = tell.metrics(folder, Validated)
        assert validated.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_metrics_are_means_over_all_that_was_counted(lab: Lab, tell: Tell, plain: Plain) -> None:
    def metrics(model: nn.Module, batch: Batch) -> dict[str, Any]:
        assert not model.training and not torch.is_grad_enabled()
        weights = batch[2].float()
        return {
            "mean": batch[0].mean(),
            "ratio": (weights.sum(), len(weights)),
            "small": (weights.sum() / 1e4, weights.sum() / 1e3),
            "best": batch[0].sum() * 0 + float("inf"),
        }

    folder = lab.run(
        plain(
            model=linear, loss=weighted, train_data=weighted_data, validation_data=weighted_data,
            metrics=metrics, epochs=1,
        )
    )  # fmt: skip
    [validated] = tell.metrics(folder, Validated)
    inputs, _, weights = weighted_data()
    assert validated.metrics["mean"] == pytest.approx(float(inputs.mean()), rel=1e-4)
    assert validated.metrics["ratio"] == pytest.approx(float(weights.float().mean()))
    assert validated.metrics["small"] == pytest.approx(0.1)
    assert validated.metrics["best"] is None and set(validated.metrics) > {"loss"}


def test_moving_average_is_that_of_the_formula(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(
        model=linear, optimizer=sgd, loss=mean, train_data=data, shuffle=False, epochs=1, ema=0.7,
        validation_data=data,
    )  # fmt: skip
    folder = lab.new()
    last = lab.go_on(folder, experiment)
    average = reference(experiment, [8] * 6 + [2], average=0.7)
    kept = tell.state(folder)["average"]["averages"]
    for one, two in zip(kept, average.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    with torch.no_grad():
        expected = float(mean(average, data()))
        assert abs(float(mean(last, data())) - expected) > 1e-3
    assert tell.metrics(folder, Validated)[0].metrics["loss"] == pytest.approx(expected, rel=1e-5)
    weights = load_file(folder.weights)
    for name, value in average.state_dict().items():
        assert torch.allclose(weights[name], value, atol=1e-6)


# Every sample once in each epoch.


class Numbers(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), float(index)), index


class NumberStream:
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield from (Numbers()[index] for index in range(50))


def numbers() -> dict[str, Tensor]:
    indices = torch.arange(50)
    return {"label": indices, "input": indices.float().unsqueeze(1).expand(50, 6).clone()}


FEEDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tensors": (lambda: tuple(numbers().values()), {}),
    "dict of tensors": (numbers, {"micro_batch_size": 3}),
    "samples": (Numbers, {"loader_workers": 0}),
    "samples accumulated": (Numbers, {"loader_workers": 0, "micro_batch_size": 3}),
    "samples with workers": (Numbers, {"loader_workers": 2, "micro_batch_size": 3}),
    "subset": (lambda: torch.utils.data.Subset(Numbers(), range(50)), {"loader_workers": 1}),
    "list": (lambda: [Numbers()[index] for index in range(50)], {"loader_workers": 0}),
    "stream": (NumberStream, {}),
    "stream accumulated": (NumberStream, {"micro_batch_size": 3}),
    "stream with a worker": (NumberStream, {"loader_workers": 1}),
}


@pytest.mark.parametrize("name", FEEDS)
def test_every_sample_is_seen_once_in_each_epoch(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    make, use = FEEDS[name]
    seen: list[int] = []
    batches: list[int] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        # Where two things are given by order, either may be the labels.
        values = list(batch.values()) if isinstance(batch, dict) else list(batch)
        inputs, labels = sorted(values, key=lambda one: -one.dim())
        assert torch.equal(inputs[:, 0].long(), labels)
        seen.extend(labels.tolist())
        batches.append(len(labels))
        return nn.functional.cross_entropy(model(inputs), labels % 3)

    experiment = plain(model=linear, loss=loss, train_data=make, validation_data=None, epochs=2)
    folder = lab.run(experiment, **use)
    assert Counter(seen[:50]) == Counter(range(50)) == Counter(seen[50:])
    is_shuffled = "stream" not in name
    assert (seen[:50] != sorted(seen[:50])) is is_shuffled
    assert (seen[:50] != seen[50:]) is is_shuffled
    micro = use.get("micro_batch_size", 8)
    assert batches == ([8] * 6 + [2] if micro == 8 else [3, 3, 2] * 6 + [2]) * 2
    assert tell.events(folder, Finished)[0].num_samples_seen == 100
    assert tell.state(folder)["position"]["step"] == 14


def test_order_is_that_of_the_data_when_not_shuffled(lab: Lab, plain: Plain) -> None:
    for make in (Numbers, lambda: tuple(numbers().values())):
        seen: list[int] = []

        def loss(model: nn.Module, batch: Any, seen: list[int] = seen) -> Tensor:
            inputs, labels = sorted(batch, key=lambda one: -one.dim())
            seen.extend(labels.tolist())
            return nn.functional.cross_entropy(model(inputs), labels % 3)

        lab.run(
            plain(model=linear, loss=loss, train_data=make, validation_data=None, shuffle=False)
        )
        assert seen == list(range(50)) * 3


def test_gathers_of_several_batches_lose_nothing(
    lab: Lab, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows so wide that only three batches of 8 are gathered at once.
    wide = 16 * 2**20 // (3 * 8 * 4)
    seen: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        seen.extend(batch[0][:, 0].long().tolist())
        return model(batch[0][:, :6]).square().mean()

    def rows() -> tuple[Tensor]:
        return (torch.arange(50.0).unsqueeze(1).repeat(1, wide),)

    experiment = plain(model=linear, loss=loss, train_data=rows, validation_data=None, epochs=1)
    whole = lab.new()
    lab.go_on(whole, experiment)
    order = list(seen)
    assert Counter(order) == Counter(range(50))
    seen.clear()
    parts = lab.new()
    for stop in (2, 3):
        lab.go_on(parts, experiment, stop_after=stop)
    lab.go_on(parts, experiment)
    assert seen == order


def test_weights_are_those_given_when_initialised(lab: Lab, tell: Tell, plain: Plain) -> None:
    def still(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    given = lab.run(plain(model=linear))
    begun = lab.run(plain(model=linear, optimizer=still, steps=1, epochs=None), seed=5,
                    init=str(given.weights))  # fmt: skip
    weights = load_file(given.weights)
    for name, value in tell.state(begun)["model"].items():
        assert torch.equal(value, weights[name])
