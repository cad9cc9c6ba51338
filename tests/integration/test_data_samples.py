"""Data sets of other libraries, and samples that are not made of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.collate import stacked
from flatout.errors import FlatoutError, UsageError

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["inputs"]), batch["label"])


@pytest.fixture
def hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fifty rows of a local data set, in five shards; `datasets` writes nothing outside."""
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    datasets.disable_progress_bars()
    rows = [{"inputs": [float((row * place) % 7) for place in range(6)], "label": row % 3}
            for row in range(50)]  # fmt: skip
    return datasets.Dataset.from_list(rows).with_format("torch")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_run_is_identical_on_a_hugging_face_dataset(
    lab: Lab, tell: Tell, plain: Plain, hugging_face: Any, num_workers: int
) -> None:
    experiment = plain(
        train_data=lambda: hugging_face, validation_data=lambda: hugging_face, loss=loss
    )
    whole = lab.run(experiment, loader_workers=0)
    parts = lab.new(loader_workers=num_workers)
    lab.go_on(parts, experiment, stop_after=9)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


def streamed(dataset: Any) -> Any:
    return dataset.to_iterable_dataset(num_shards=5)


def shuffled(dataset: Any) -> Any:
    return streamed(dataset).shuffle(seed=1, buffer_size=12).map(lambda row: row)


@pytest.mark.parametrize("kind", [streamed, shuffled])
def test_resumed_run_is_identical_on_a_hugging_face_stream(
    lab: Lab, tell: Tell, plain: Plain, hugging_face: Any, kind: Any
) -> None:
    experiment = plain(train_data=lambda: kind(hugging_face), validation_data=None, loss=loss)
    whole = lab.run(experiment)
    for stops in ((3, 8), (7,)):
        parts = lab.new()
        for stop in stops:
            lab.go_on(parts, experiment, stop_after=stop)
        lab.go_on(parts, experiment)
        assert tell.traces(parts) == tell.traces(whole)
    # What lies in a shuffle's buffer is not in the stream's state: it is read again.
    assert ("iterable-is-replayed" in tell.rules(whole)) == (kind is shuffled)


class Numbers(torch.utils.data.IterableDataset[dict[str, Any]]):
    """As torch's documentation writes one: no length, no state."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(50):
            yield {"inputs": torch.randn(6), "label": row % 3}


def test_resumed_run_is_identical_on_torchs_iterable(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(train_data=Numbers, validation_data=Numbers, loss=loss)
    whole = lab.run(experiment)
    parts = lab.new()
    lab.go_on(parts, experiment, stop_after=9)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


class Other:
    """No number."""


def picture() -> Any:
    return pytest.importorskip("PIL.Image", reason="needs Pillow").new("RGB", (4, 4))


SAMPLES: dict[str, Callable[[], list[Any]]] = {
    "`sample['text']` is a str": lambda: [{"label": 1, "text": "good"}] * 2,
    "`sample[1]` is a str": lambda: [(torch.ones(2), "cat")] * 2,
    "`sample['meta'][0]` is a bytes": lambda: [{"meta": [b"x"]}] * 2,
    "`sample['image']` is a PIL.Image.Image": lambda: [{"label": 1, "image": picture()}] * 2,
    "`sample[1]` is a NoneType": lambda: [(1, None)] * 2,
    "samples of type str": lambda: ["a", "b"],
    "differ in size": lambda: [torch.ones(2), torch.ones(3)],
    "differ in size: ": lambda: [[1, 2], [1, 2, 3]],
    "differ in structure": lambda: [{"a": 1}, {"b": 1}],
}


@pytest.mark.parametrize("part", list(SAMPLES))
def test_samples_that_are_no_numbers_are_refused(part: str) -> None:
    with pytest.raises(UsageError) as caught:
        stacked(SAMPLES[part]())
    assert caught.value.rule == "samples-cannot-be-stacked"
    assert part in str(caught.value)
    assert "collate" in caught.value.fix


def test_samples_of_numbers_are_stacked_as_torch_does() -> None:
    numpy = pytest.importorskip("numpy")
    samples = [{"a": numpy.ones(2), "b": (1, 2.5), "c": True, "d": numpy.float32(3)}] * 2
    batch = stacked(samples)
    assert batch["a"].shape == (2, 2) and batch["b"][1].tolist() == [2.5, 2.5]
    assert batch["c"].tolist() == [True, True] and batch["d"].tolist() == [3, 3]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("is_stream", [False, True])
def test_text_in_a_sample_is_reported_before_the_first_step(
    lab: Lab, tell: Tell, plain: Plain, num_workers: int, is_stream: bool
) -> None:
    rows = [{"inputs": torch.ones(6), "label": 1, "text": "good"}] * 50

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    make: Any = Stream if is_stream else lambda: rows
    run = lab.new(loader_workers=num_workers)
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(run, plain(train_data=make, validation_data=None, loss=loss))
    assert caught.value.rule == "samples-cannot-be-stacked"
    assert tell.failure(run).rule == "samples-cannot-be-stacked"
    # Who wants them as texts says so.
    kept = plain(train_data=make, validation_data=None, loss=loss,
                 collate=torch.utils.data.default_collate)  # fmt: skip
    lab.go_on(lab.new(loader_workers=num_workers), kept)
