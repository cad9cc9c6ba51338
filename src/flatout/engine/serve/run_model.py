"""A run's model as a replica serves it: what `flatout predict` computes, batch after batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Any

import torch

from flatout.engine.model import precision
from flatout.engine.predict.predictor import Predictor, load, on_cpu
from flatout.engine.predict.rows import plain_value
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import use_device
from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.user_code import kind_text
from flatout.engine.serve.inference_recipe import COMPILED
from flatout.engine.serve.input_arrays import wire_tensor
from flatout.engine.serve.input_reader import InputReader, named_tensors
from flatout.engine.serve.json_rows import json_rows
from flatout.engine.serve.replica_model import (
    FailureKind,
    InputPart,
    MeasureBatches,
    ReadInput,
)
from flatout.engine.serve.run_warm_up import warmed_up
from flatout.engine.session.session import process_settings
from flatout.engine.tensors.nested import placer, tensors_in, with_tensors
from flatout.errors import UsageError
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import AnyInput, ReplicaStart, WireTensor
from flatout.schema.units import counted_text
from flatout.system.scratch_files import ScratchFiles


class RunModel:
    """A run behind `ReplicaModel`. The settings of its recipe stay those of the process.

    call: makes predictions of a batch on the device. is_channels_last: the layout of pictures.

    Args:
        start: which run, and how.
        scratch: for readers that take a path.
        stack: ends with the process.
    """

    def __init__(
        self, start: ReplicaStart, scratch: ScratchFiles, stack: contextlib.ExitStack
    ) -> None:
        self.predictor = loaded(start)
        self.call: Callable[[Any], Any] = self.predictor.call
        self.is_channels_last = self.predictor.recipe.memory_format.value == "channels_last"
        self.reader = InputReader(self.predictor.experiment, scratch)
        self.findings = list(self.predictor.findings)
        self.usual_keys: set[Hashable] = set()
        self.measure_batches: MeasureBatches | None = None
        self._scratch = scratch
        self._autocast = precision.autocast(
            self.predictor.recipe.precision.value, self.predictor.device
        )
        use_device(self.predictor.device)
        stack.enter_context(self.predictor.fitted())
        stack.enter_context(process_settings(self.predictor.recipe))
        rng.seed_generators(rng.mixed_seed(self.predictor.seed, "prediction"))

    def warm_up(self, start: ReplicaStart) -> Generator[str, None, ServedModel]:
        return warmed_up(self, start)

    def begin_batch(self) -> None:
        self._scratch.clear()

    def read(self, given: AnyInput) -> ReadInput:
        return self.reader.read(given)

    def joined(self, parts: Sequence[InputPart]) -> Any:
        if isinstance(parts[0].read.key, tuple) and parts[0].read.key[0] == "tensors":
            pieces = [list(tensors_in(part.read.data)) for part in parts]
            columns = [
                torch.cat([piece[place][part.start : part.end]
                           for piece, part in zip(pieces, parts, strict=True)])
                for place in range(len(pieces[0]))
            ]  # fmt: skip
            return with_tensors(parts[0].read.data, iter(columns))
        samples = [sample for part in parts for sample in part.read.data[part.start : part.end]]
        return self.predictor.collated(samples)

    def compute(self, batch: Any, num_samples: int) -> Any:
        to_device = placer(self.predictor.device, self.is_channels_last)
        with torch.inference_mode():
            placed = to_device(batch) if to_device is not None else batch
            # Not in a `ThreadPlacement`, which needs a thread for each CPU: a replica leaves one to
            # the server, so that Linux has room to move threads apart. With all CPUs in each of
            # several replicas (`--use num_threads=N`), the same CPU would be the first of all.
            with self._autocast():
                predictions = self.call(placed)
            return on_cpu(predictions, num_samples)

    def rows(self, predictions: Any, num_samples: int, top: int) -> list[dict[str, Any]]:
        experiment = self.predictor.experiment
        return json_rows(
            predictions, num_samples, labels=experiment.labels, top=top, encode=experiment.encode
        )

    def tensors(self, predictions: Any, start: int, end: int) -> tuple[WireTensor, ...]:
        named = named_tensors(predictions)
        if not named:
            raise UsageError(
                "bad-prediction",
                "these predictions are not tensors.",
                because=f"the experiment's `predict` returns {type(predictions).__name__}",
                fix="ask for rows: POST /predict",
            )
        return tuple(wire_tensor(name, part[start:end].numpy()) for name, part in named.items())

    def stream(self, given: AnyInput) -> Iterator[str]:
        stream = self.predictor.experiment.stream
        assert stream is not None
        read = self.reader.read(given)
        if read.num_samples != 1:
            count = counted_text(read.num_samples, "sample")
            raise ValueError(f"it has {count}; one is streamed at a time")
        is_tensors = isinstance(read.key, tuple) and read.key[0] == "tensors"
        sample = (
            with_tensors(read.data, (tensor[0] for tensor in tensors_in(read.data)))
            if is_tensors
            else read.data[0]
        )
        to_device = placer(self.predictor.device, False)
        placed = to_device(sample) if to_device is not None else sample
        pieces = iter(stream(self.predictor.model, placed))
        while True:
            # Other batches are computed between two pieces: the settings are of each piece.
            with torch.inference_mode(), self._autocast():
                piece = next(pieces, None)
            if piece is None:
                return
            if not isinstance(piece, str):
                raise TypeError(f"`stream` yields {kind_text(piece)}, not texts")
            yield plain_value(piece)

    def failure_kind(self, error: Exception) -> FailureKind:
        if is_out_of_memory(error):
            return "memory"
        # Every later call raises the same: only a new process can use the device.
        is_lost = isinstance(error, CaptureBroken) or "CUDA error" in str(error)
        return "device" if is_lost and self.predictor.device.type == "cuda" else "other"

    def release_memory(self) -> None:
        release_memory()

    def memory_bytes(self) -> int | None:
        device = self.predictor.device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else None


def loaded(start: ReplicaStart) -> Predictor:
    """The run's predictor, with the number of threads that the server leaves to this process."""
    # `SpeedTrial` tries these; for a prediction in general they have no effect.
    use = {
        name: value
        for name, value in start.fixed.items()
        if name != "capture" and (name != "compiled" or value not in ("off", *COMPILED))
    }
    if start.num_threads is not None:
        use.setdefault("num_threads", start.num_threads)
    return load(start.model, use=use, parameters=start.parameters, experiment=start.experiment)
