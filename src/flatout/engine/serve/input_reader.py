"""A run's inputs as its experiment reads them: by `decode`, by `predict_data`, or as tensors."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.engine.data.tensor_files import read_tensors
from flatout.engine.experiment import Experiment
from flatout.engine.feed.collate import samples_of
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.serve.input_arrays import arrays_of
from flatout.engine.serve.replica_model import ReadInput
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.schema.serve_model import TensorSpec
from flatout.schema.serve_protocol import AnyInput, FileInput, TensorInput, TextInput
from flatout.schema.units import counted_text
from flatout.system.scratch_files import ScratchFiles

# Of one input: a small file must not fill the memory.
_MOST_SAMPLES = 65_536
# As Windows takes it: `\\host\share`, and its own form `\??\UNC\host\share`.
_SHARE = re.compile(r"\s*[\\/](?:[\\/]|\?\?[\\/])")


class InputReader:
    """Makes samples of inputs.

    specs, layout: the tensors that the model takes, and a nesting of such; empty and None where
    only the experiment's own readers know.
    """

    def __init__(self, experiment: Experiment, scratch: ScratchFiles) -> None:
        self.specs: tuple[TensorSpec, ...] = ()
        self.layout: Any = None
        self._experiment = experiment
        self._scratch = scratch

    def read(self, given: AnyInput) -> ReadInput:
        """The samples of an input; raises what the experiment's reader raises."""
        data = self.data(given)
        if data_kind(data) == "tensors":
            tensors = list(tensors_in(data))
            shapes = tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors)
            if not len(tensors[0]):
                raise ValueError("it has no samples")
            return ReadInput(("tensors", shapes), len(tensors[0]), data)
        samples = _listed(data)
        return ReadInput(self._key(samples[0]), len(samples), samples)

    def data(self, given: AnyInput) -> Any:
        """What is in an input, of any kind that `train_data` may have."""
        experiment = self._experiment
        if isinstance(given, TensorInput):
            return self._tensors(given)
        if experiment.decode is not None:
            if isinstance(given, FileInput):
                return experiment.decode(given.data)
            return experiment.decode(given.text if isinstance(given, TextInput) else given.value)
        if isinstance(given, FileInput):
            return self.from_file(given.data, given.suffix)
        if isinstance(given, TextInput):
            return self._of_text(given.text)
        if isinstance(given.value, str):
            return self._of_text(given.value)
        return self._tensors(given)

    def from_file(self, content: bytes, suffix: str) -> Any:
        """What `predict_data` reads from a file with this content."""
        # A name of our own: what a client calls its file never becomes a path.
        path = self._scratch.write(content, suffix)
        return (self._experiment.predict_data or read_tensors)(str(path))

    def _of_text(self, text: str) -> Any:
        if self._experiment.predict_data is None:
            raise ValueError("the experiment reads no texts")
        # A reader takes the name of a file for that file: a client must not read files here. On
        # Windows, even looking for a file on another computer logs in there.
        if sys.platform == "win32" and _SHARE.match(text):
            raise ValueError("this text is the name of a file on another computer")
        try:
            is_path = os.path.lexists(os.path.expanduser(text))
        except (OSError, ValueError):
            is_path = False
        if is_path:
            raise ValueError("this text is the name of a file on the server")
        return self._experiment.predict_data(text)

    def _tensors(self, given: AnyInput) -> Any:
        if self.layout is None:
            raise ValueError("the model takes what the experiment's `predict_data` reads: a file")
        # A copy, which torch may write to, unlike the message.
        arrays = [torch.from_numpy(array.copy()) for array in arrays_of(given, self.specs)]
        return with_tensors(self.layout, iter(arrays))

    def _key(self, sample: Any) -> Hashable:
        """Samples that are collated together: of the same shapes, or padded to similar ones."""
        if isinstance(sample, str):
            return ("texts", len(sample).bit_length())
        shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors_in(sample)]
        if self._experiment.collate is None:
            return ("samples", tuple(shapes))
        return ("padded", tuple((dtype, max(shape, default=0).bit_length())
                                for dtype, shape in shapes))  # fmt: skip


def _listed(data: Any) -> list[Any]:
    kind = data_kind(data)
    samples = samples_of(data) if kind == "iterable" else (data[row] for row in range(len(data)))
    listed = list(itertools.islice(samples, _MOST_SAMPLES + 1))
    if not listed:
        raise ValueError("it has no samples")
    if len(listed) > _MOST_SAMPLES:
        raise ValueError(f"it has more than {counted_text(_MOST_SAMPLES, 'sample')}")
    return listed


def specs_of(layout: Any) -> tuple[TensorSpec, ...]:
    """The tensors of a nesting: `input`, `input_1` and so on, or by the names of a dict."""
    named = _named(layout, "")
    return tuple(
        TensorSpec(
            name=name or "input",
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=(None, *tensor.shape[1:]),
        )
        for name, tensor in named
    )


def _named(layout: Any, name: str) -> Sequence[tuple[str, Tensor]]:
    if isinstance(layout, Tensor):
        return [(name, layout)]
    if isinstance(layout, dict):
        items = [(f"{name}{'.' if name else ''}{key}", item) for key, item in layout.items()]
    else:
        items = [(f"{name or 'input'}_{number}", item) for number, item in enumerate(layout)]
    return [pair for path, item in items for pair in _named(item, path)]


def named_tensors(predictions: Any) -> dict[str, Tensor]:
    """The tensors of predictions; `prediction` where there is only one."""
    parts = predictions if isinstance(predictions, dict) else {"prediction": predictions}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}
