"""Samples in the form that an experiment's `predict` takes, found by trying.

An experiment says how its loss takes the training data, and how `predict` takes a new input, but
not how one becomes the other.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatout.engine.feed.collate import samples_of, stacked
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.feed.select_feed import built_data
from flatout.engine.predict.predictor import Predictor
from flatout.engine.runtime import rng
from flatout.engine.serve.input_reader import InputReader
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.schema.serve_protocol import AnyInput, FileInput, TextInput, ValueInput
from flatout.system.optional_packages import is_installed

# Two lengths, to see which dimensions depend on it. Their letters are in most alphabets.
_TEXTS = ("the", "the first of these")
# The form of one sample is that of all.
_NUM_TRIED = 8
_TARGETS = {"label", "labels", "target", "targets", "y"}


@dataclass(frozen=True, kw_only=True)
class SampleInputs:
    """Samples as `predict` takes them.

    content: a batch. given: an input that is read as one sample, or None where `content` was taken
    from the training data as it is. targets: of the samples, where the data has them.
    varying: of each tensor, the dimensions that depend on the input. data: where they are from.
    """

    content: Any
    num_samples: int
    given: AnyInput | None = None
    targets: Tensor | None = None
    varying: tuple[frozenset[int], ...] = ()
    data: str = "made-up"

    @property
    def is_tensors(self) -> bool:
        """Whether a client can send the same as tensors."""
        return is_all_tensors(self.content)

    def piece(self, start: int, end: int) -> Any:
        """Some of the samples, as a batch."""
        if next(tensors_in(self.content), None) is None:
            return self.content[start:end]
        return with_tensors(self.content, (part[start:end] for part in tensors_in(self.content)))


def find_sample_inputs(
    predictor: Predictor,
    reader: InputReader,
    num_samples: int,
    names: Sequence[str] = ("validation", "training"),
) -> SampleInputs | None:
    """Samples that the model computes; None if none was found.

    Texts come first, then samples of the validation or training data as `decode` or `predict_data`
    reads them, then an image, and last the training data as it is.
    """
    for found in _guesses(predictor, reader, num_samples, names):
        if _is_computed(predictor, found):
            return found
    return None


def _guesses(
    predictor: Predictor, reader: InputReader, num_samples: int, names: Sequence[str]
) -> Iterator[SampleInputs]:
    yield from _until_refused(_texts(reader))
    # Only now: to build the data may take longer than all the rest.
    batch, name = training_batch(predictor, num_samples, names)
    if batch is not None:
        for guesses in (_decoded(predictor, reader, batch), _from_array(reader, batch)):
            for found in _until_refused(guesses):
                yield replace(found, data=name)
    yield from _until_refused(_picture(reader))
    if batch is not None:
        for found in _until_refused(_as_in_training(batch)):
            yield replace(found, data=name)


def _until_refused(guesses: Iterator[SampleInputs]) -> Iterator[SampleInputs]:
    """The experiment may refuse a guess in any way."""
    with contextlib.suppress(Exception):
        yield from guesses


def training_batch(predictor: Predictor, num_samples: int, names: Sequence[str]) -> tuple[Any, str]:
    """The first samples of the first of these data sets that there is; None without any."""
    experiment = predictor.experiment
    sources = {"validation": experiment.validation_data, "training": experiment.train_data}
    for name in names:
        make = sources[name]
        if make is None:
            continue
        # The data may be on another machine; then only the form of its inputs is not known.
        with contextlib.suppress(Exception), rng.untouched_generators(predictor.device):
            rng.seed_generators(rng.mixed_seed(predictor.seed, "samples"))
            data = built_data(experiment, make)
            kind = data_kind(data)
            if kind == "tensors":
                return with_tensors(data, (part[:num_samples] for part in tensors_in(data))), name
            samples = (
                samples_of(data)
                if kind == "iterable"
                else (data[row] for row in range(min(num_samples, len(data))))
            )
            listed = list(itertools.islice(samples, num_samples))
            return (experiment.collate or stacked)(listed), name
    return None, ""


def without_targets(batch: Any) -> Iterator[tuple[Any, Tensor | None]]:
    """What of a training batch may be the model's input, the likeliest first, and its targets."""
    if isinstance(batch, dict):
        names = [name for name in batch if str(name).lower() in _TARGETS]
        if names:
            rest = {name: part for name, part in batch.items() if name not in names}
            yield rest, _as_tensor(batch[names[0]])
    elif isinstance(batch, list | tuple) and len(batch) > 1:
        target = _as_tensor(batch[-1])
        if len(batch) > 2:
            yield tuple(batch[:-1]), target
        yield batch[0], target
    yield batch, None


def _as_tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


def _is_computed(predictor: Predictor, found: SampleInputs) -> bool:
    count = min(found.num_samples, _NUM_TRIED)
    try:
        predictor.compute(found.piece(0, count), count)
    except Exception:  # noqa: BLE001 - only whether it can be computed is asked
        return False
    return True


def _texts(reader: InputReader) -> Iterator[SampleInputs]:
    short, long = (reader.read(TextInput(text)) for text in _TEXTS)
    given = TextInput(_TEXTS[1])
    if not is_all_tensors(long.data):
        yield SampleInputs(content=long.data, num_samples=1, given=given)
        return
    varying = tuple(
        frozenset(place for place, sizes in enumerate(zip(*shapes, strict=True))
                  if len(set(sizes)) > 1)
        for shapes in ((a.shape, b.shape) for a, b in zip(
            tensors_in(short.data), tensors_in(long.data), strict=True))
    )  # fmt: skip
    yield SampleInputs(content=long.data, num_samples=1, given=given, varying=varying)


def _decoded(predictor: Predictor, reader: InputReader, batch: Any) -> Iterator[SampleInputs]:
    """Samples as JSON values, read by `decode`."""
    if predictor.experiment.decode is None:
        return
    for candidate, targets in without_targets(batch):
        if not isinstance(candidate, Tensor):
            continue
        # One after the other: as lists, numbers take many times their memory.
        read = [reader.read(_value(sample)) for sample in candidate]
        if all(one.num_samples == 1 and is_all_tensors(one.data) for one in read):
            columns = zip(*(tensors_in(one.data) for one in read), strict=True)
            content = with_tensors(read[0].data, (torch.cat(column) for column in columns))
            yield SampleInputs(
                content=content, num_samples=len(read), given=_value(candidate[0]),
                targets=targets,
            )  # fmt: skip


def _value(sample: Tensor) -> ValueInput:
    return ValueInput(_rounded(sample.tolist()))


def _rounded(value: Any) -> Any:
    """Numbers as a person would write them in an example."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _from_array(reader: InputReader, batch: Any) -> Iterator[SampleInputs]:
    """Samples as an array in a file, read by `predict_data`."""
    import numpy

    for candidate, targets in without_targets(batch):
        if isinstance(candidate, Tensor):
            content = io.BytesIO()
            numpy.save(content, candidate.numpy())
            # Files go to `decode`, where there is one; arrays are what `predict_data` may read.
            data = reader.from_file(content.getvalue(), ".npy")
            if is_all_tensors(data) and len(next(tensors_in(data))) == len(candidate):
                yield SampleInputs(content=data, num_samples=len(candidate), targets=targets)


def _picture(reader: InputReader) -> Iterator[SampleInputs]:
    """A grey picture in a PNG file."""
    if not is_installed("PIL"):
        return
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(content, format="PNG")
    given = FileInput(content.getvalue(), ".png")
    read = reader.read(given)
    if is_all_tensors(read.data):
        yield SampleInputs(content=read.data, num_samples=read.num_samples, given=given)


def _as_in_training(batch: Any) -> Iterator[SampleInputs]:
    for candidate, targets in without_targets(batch):
        if is_all_tensors(candidate):
            count = len(next(tensors_in(candidate)))
            yield SampleInputs(content=candidate, num_samples=count, targets=targets)
