"""What a replica serves, whatever its form: a run, or an exported file. Loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from flatout.schema.finding import Finding
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import AnyInput, ReplicaStart, WireTensor

# What went wrong in a computation: memory ran out; the device cannot be used by this process any
# more; anything else.
FailureKind = Literal["memory", "device", "other"]
# Seconds of a batch by its number of samples; yields what is measured next.
MeasureBatches = Callable[[], Generator[str, None, dict[int, float]]]


@dataclass(frozen=True, slots=True)
class ReadInput:
    """An input as samples. key: samples of the same key can be computed together."""

    key: Hashable
    num_samples: int
    data: Any


class InputPart(NamedTuple):
    """Samples of an input, from start to end."""

    read: ReadInput
    start: int
    end: int


class ReplicaModel(Protocol):
    """A model that answers batches.

    findings: what is worth knowing about how it was loaded, and its warm-up.
    usual_keys: of samples that were computed in the warm-up. measure_batches: as the warm-up did;
    None before it, or without an example to measure with.
    """

    findings: list[Finding]
    usual_keys: set[Hashable]
    measure_batches: MeasureBatches | None

    def warm_up(self, start: ReplicaStart) -> Generator[str, None, ServedModel]:
        """Chooses how to compute, and measures batches; yields what it does."""
        ...

    def begin_batch(self) -> None:
        """The last batch was answered; what it needed can go."""
        ...

    def read(self, given: AnyInput) -> ReadInput:
        """The samples of an input; raises any exception if it is not one of this model's."""
        ...

    def joined(self, parts: Sequence[InputPart]) -> Any:
        """A batch of samples of the same key."""
        ...

    def compute(self, batch: Any, num_samples: int) -> Any:
        """The predictions for a batch."""
        ...

    def rows(self, predictions: Any, num_samples: int, top: int) -> list[dict[str, Any]]:
        """A row of JSON's kinds for each sample."""
        ...

    def tensors(self, predictions: Any, start: int, end: int) -> tuple[WireTensor, ...]:
        """The predictions for samples as tensors.

        Raises:
            UsageError: bad-prediction.
        """
        ...

    def stream(self, given: AnyInput) -> Iterator[str]:
        """The prediction for an input's only sample, piece by piece."""
        ...

    def failure_kind(self, error: Exception) -> FailureKind:
        """What went wrong."""
        ...

    def release_memory(self) -> None:
        """Gives back what is not in use, before less is tried."""
        ...

    def memory_bytes(self) -> int | None:
        """Memory of the device in use; None where it is the computer's."""
