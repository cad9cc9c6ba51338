"""An exported file as a replica serves it: arrays in, arrays out. Loads no framework itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy

from flatout.engine.predict.array_rows import Array, array_rows
from flatout.engine.serve.batch_times import best_size, clock_for, measured_sizes
from flatout.engine.serve.input_arrays import arrays_of, wire_tensor
from flatout.engine.serve.replica_model import (
    FailureKind,
    InputPart,
    MeasureBatches,
    ReadInput,
)
from flatout.schema.export_protocol import ExportedFacts
from flatout.schema.finding import Finding
from flatout.schema.serve_model import ModelFormat, ServedModel
from flatout.schema.serve_protocol import (
    AnyInput,
    ReplicaStart,
    TensorInput,
    ValueInput,
    WireTensor,
)
from flatout.schema.units import counted_text

_OUT_OF_MEMORY = ("out of memory", "Failed to allocate memory", "not enough memory")


class ExportedModel:
    """An exported file behind `ReplicaModel`.

    Args:
        name: of the file.
        form: of the file.
        facts: what the file says of itself.
        device: where it computes.
        compute: makes arrays by name of a list of arrays.
        num_threads: of the CPU; None leaves it to the library.
    """

    def __init__(
        self,
        name: str,
        form: ModelFormat,
        facts: ExportedFacts,
        device: str,
        compute: Callable[[Sequence[Array]], Mapping[str, Array]],
        num_threads: int | None = None,
    ) -> None:
        self._name = name
        self._form = form
        self._facts = facts
        self._device = device
        self._run = compute
        self._num_threads = num_threads
        self.findings: list[Finding] = []
        self.usual_keys: set[Hashable] = set()
        self.measure_batches: MeasureBatches | None = None

    def warm_up(self, start: ReplicaStart) -> Generator[str, None, ServedModel]:
        facts = self._facts
        example = _example(facts)
        self.usual_keys = {self.read(example).key}
        clock = clock_for(self._device, self._num_threads)
        self.measure_batches = partial(
            measured_sizes, self, example, start.latency_s, start.max_samples, clock
        )
        batch_s = yield from self.measure_batches()
        return ServedModel(
            name=self._name,
            version=f"{facts.run}.{facts.step}" if facts.run else self._name,
            format=self._form,
            inputs=facts.inputs,
            outputs=facts.outputs,
            accepts=("tensors", "value"),
            labels=facts.labels,
            example=example.value if isinstance(example, ValueInput) else None,
            device=self._device,
            precision=facts.precision,
            recipe=(f"num_threads={self._num_threads}",) if self._num_threads else (),
            batch_s=batch_s,
            max_samples=start.max_samples or best_size(batch_s, start.latency_s),
            unit=facts.unit,
        )

    def begin_batch(self) -> None:
        """Nothing is kept between batches."""

    def read(self, given: AnyInput) -> ReadInput:
        arrays = arrays_of(given, self._facts.inputs)
        shapes = tuple(array.shape[1:] for array in arrays)
        return ReadInput(shapes, len(arrays[0]), arrays)

    def joined(self, parts: Sequence[InputPart]) -> Any:
        return [
            numpy.concatenate([part.read.data[place][part.start : part.end] for part in parts])
            for place in range(len(self._facts.inputs))
        ]

    def compute(self, batch: Any, num_samples: int) -> Any:
        outputs = self._run(batch)
        for name, output in outputs.items():
            if output.ndim == 0 or len(output) != num_samples:
                raise ValueError(
                    f"`{name}` has the shape {list(output.shape)} for "
                    f"{counted_text(num_samples, 'sample')}"
                )
        return outputs

    def rows(self, predictions: Any, num_samples: int, top: int) -> list[dict[str, Any]]:
        return array_rows(predictions, num_samples, self._facts.labels, top)

    def tensors(self, predictions: Any, start: int, end: int) -> tuple[WireTensor, ...]:
        return tuple(wire_tensor(name, part[start:end]) for name, part in predictions.items())

    def stream(self, given: AnyInput) -> Iterator[str]:
        raise ValueError("an exported file does not generate piece by piece")

    def failure_kind(self, error: Exception) -> FailureKind:
        text = str(error)
        if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
            return "memory"
        return "device" if "CUDA failure" in text or "CUDA error" in text else "other"

    def release_memory(self) -> None:
        """The runtime of the file keeps its memory for itself."""

    def memory_bytes(self) -> int | None:
        return None


def num_threads_of(start: ReplicaStart) -> int | None:
    """Threads on the CPU: those that the user fixed, or this replica's share."""
    return start.fixed.get("num_threads") or start.num_threads


def _example(facts: ExportedFacts) -> AnyInput:
    """The example in the file, or zeros."""
    if facts.example is not None:
        return ValueInput(facts.example)
    return TensorInput(
        tuple(
            wire_tensor(spec.name, numpy.zeros([size or 1 for size in spec.shape], spec.dtype))
            for spec in facts.inputs
        )
    )
