"""Confusion matrices: counted as by hand, summed over batches, repeated by a resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from flatout.engine import Confusion, Experiment, confusion
from flatout.engine.session.load_experiment import load_experiment
from flatout.errors import UsageError
from flatout.experiments import digits
from flatout.schema.class_report import class_report
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run_lines import Classified, Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def by_hand(predicted: list[int], targets: list[int], num_classes: int) -> list[list[int]]:
    counts = [[0] * num_classes for _ in range(num_classes)]
    for one, target in zip(predicted, targets, strict=True):
        if target != -100:
            counts[target][one] += 1
    return counts


def dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_confusion_counts_as_by_hand() -> None:
    scores = torch.randn(200, 5, generator=dice())
    targets = torch.randint(5, (200,), generator=dice())
    targets[::7] = -100
    counted = confusion(scores, targets)
    assert counted.counts.tolist() == by_hand(scores.argmax(1).tolist(), targets.tolist(), 5)
    assert int(counted.num_strays) == 0
    pairs = counted.pairs()
    assert sum(count for _, _, count in pairs) == int((targets != -100).sum())
    assert all(counted.counts[true, predicted] == count for true, predicted, count in pairs)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.float32])
def test_confusion_takes_targets_of_any_kind(kind: torch.dtype) -> None:
    scores = torch.randn(30, 3, generator=dice())
    targets = torch.arange(30) % 3
    assert torch.equal(
        confusion(scores, targets.to(kind)).counts, confusion(scores, targets).counts
    )


@pytest.mark.parametrize("shape", [(40,), (40, 1), (4, 1, 5, 2)])
def test_confusion_of_two_classes(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, generator=dice())
    targets = torch.randint(2, (40,), generator=dice())
    hand = by_hand((logits.flatten() > 0).long().tolist(), targets.tolist(), 2)
    flat = targets.view(shape[0], *shape[2:])
    assert confusion(logits, flat).counts.tolist() == hand
    # Targets as binary_cross_entropy wants them: of the scores' shape and kind.
    assert confusion(logits, targets.view(shape).float()).counts.tolist() == hand
    assert confusion(logits.sigmoid(), flat, threshold=0.5).counts.tolist() == hand


def test_confusion_of_every_pixel() -> None:
    scores = torch.randn(2, 3, 4, 5, generator=dice())
    targets = torch.randint(3, (2, 4, 5), generator=dice())
    hand = by_hand(scores.argmax(1).flatten().tolist(), targets.flatten().tolist(), 3)
    assert confusion(scores, targets).counts.tolist() == hand
    assert confusion(scores.argmax(1), targets, num_classes=3).counts.tolist() == hand


def test_confusion_tells_of_what_is_no_class() -> None:
    counted = confusion(torch.zeros(5, 3), torch.tensor([0, 3, -1, -100, 0]))
    assert counted.counts.tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert int(counted.num_strays) == 2
    assert int(confusion(torch.zeros(3), torch.tensor([0.0, 0.5, 1.0])).num_strays) == 1
    outside = confusion(torch.tensor([0, 7]), torch.tensor([0, 0]), num_classes=2)
    assert int(outside.num_strays) == 1


@pytest.mark.parametrize(
    ("scores", "targets", "num_classes"),
    [
        (torch.zeros(4, 3), torch.zeros(5), None),
        (torch.zeros(4, 2, 3), torch.zeros(4, 2), None),
        (torch.zeros(4, dtype=torch.long), torch.zeros(4), None),
        (torch.zeros(4, dtype=torch.long), torch.zeros(3), 2),
        (torch.zeros(2, 5000), torch.zeros(2), None),
        (torch.zeros(()), torch.zeros(2), None),
    ],
)
def test_confusion_is_refused_when_shapes_do_not_fit(
    scores: Tensor, targets: Tensor, num_classes: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        confusion(scores, targets, num_classes=num_classes)
    assert caught.value.rule == "targets-do-not-fit"


def test_confusions_of_other_sizes_are_not_added() -> None:
    two, three = (confusion(torch.zeros(1, n), torch.zeros(1)) for n in (2, 3))
    with pytest.raises(UsageError):
        two + three


def test_digits_confusion_is_that_of_the_kept_weights(lab: Lab, tell: Tell) -> None:
    spec = ExperimentSpec(name="digits", parameters={"epochs": 3, "batch_size": 100})
    folder = lab.run(load_experiment(spec))
    best = [line.step for line in tell.metrics(folder, Validated) if line.is_best][-1]
    [line] = [line for line in tell.metrics(folder, Classified) if line.step == best]
    model = digits.build_model(16)
    model.load_state_dict(safetensors.torch.load_file(folder.weights))
    images, labels = digits.read_digits(is_test=True)
    with torch.no_grad():
        predicted = model.eval()(images).argmax(1)
    hand = by_hand(predicted.tolist(), labels.tolist(), 10)
    reported = [[0] * 10 for _ in range(10)]
    for true, one, count in line.counts:
        reported[true][one] = count
    assert reported == hand
    assert line.labels == tuple("0123456789")
    [validated] = [one for one in tell.metrics(folder, Validated) if one.step == best]
    assert class_report(line).accuracy == pytest.approx(validated.metrics["accuracy"])


def counting(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    inputs, labels = batch
    return {"classes": confusion(model(inputs), labels)}


def test_resume_repeats_the_confusions(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(metrics=counting, labels=["a", "b", "c"])
    whole = lab.run(experiment)
    stopped = lab.new(checkpoint_every=4)
    # Past the second validation, of which nothing is left after the cut.
    lab.crash(stopped, experiment, 17)
    lab.go_on(stopped, experiment)
    lines = tell.metrics(stopped, Classified)
    assert [line.step for line in lines] == [7, 14, 21]
    assert all(sum(count for _, _, count in line.counts) == 20 for line in lines)
    assert tell.traces(stopped) == tell.traces(whole)


def test_best_may_be_a_mean_over_the_classes(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(metrics=counting, best="macro_f1"))
    for validated, line in zip(
        tell.metrics(folder, Validated), tell.metrics(folder, Classified), strict=True
    ):
        assert validated.metrics["macro_f1"] == class_report(line).macro.f1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"labels": ["a", "b"]}, "labels-do-not-fit"),
        ({"loss": lambda model, batch: model(batch[0]).square().mean()}, "target-is-no-class"),
    ],
)
def test_what_does_not_fit_is_reported_once(
    lab: Lab, tell: Tell, plain: Plain, fields: dict[str, Any], rule: str
) -> None:
    def strays(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Confusion]:
        inputs, labels = batch
        return {"classes": confusion(model(inputs), labels if "labels" in fields else labels + 1)}

    folder = lab.run(plain(metrics=strays, **fields))
    assert [finding.rule for finding in tell.findings(folder)] == [rule]
    assert tell.metrics(folder, Classified)[-1].labels == ("0", "1", "2")
