"""How a replica computes: what gives the same answer measurably faster, tried in the warm-up.

The run's recipe comes first: its precision is never changed. Each choice says why, as
`field=value: reason`. A server should be ready soon, so that only what is tried in a fraction of a
second is tried unasked; compiling takes longer than most servers save, and is done on request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory, one_line
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.serve.batch_times import SLOW_S, best_threads, seconds_of, thread_counts
from flatout.engine.serve.graph_buckets import GraphBuckets
from flatout.engine.serve.sample_inputs import SampleInputs
from flatout.engine.step.cuda_graphs import graphs_on
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.units import counted_text, seconds_text
from flatout.system.clock import elapsed_s

if TYPE_CHECKING:
    from flatout.engine.serve.run_model import RunModel

# Values of the recipe's `compiled` that mean the model, not its optimizer.
COMPILED = ("loss", "both")
# A choice must be faster by this, so that noise does not choose.
_GAIN = 0.1
# Largest difference from the plain answer, relative to its largest number, by precision.
_TOLERANCES = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 3e-2, "fp16": 5e-3, "float8": 0.1}


class SpeedTrial:
    """Tries what may be faster, and keeps what is, with the same answer.

    plain: the predictions for the samples, by the run's own recipe.

    Args:
        model: what computes; changed where something is kept.
        start: what the user fixed.
        samples: to try it on.
    """

    def __init__(self, model: RunModel, start: ReplicaStart, samples: SampleInputs) -> None:
        self._model = model
        self._fixed = start.fixed
        self._enough_s = start.latency_s if start.spares_threads else None
        self._samples = samples
        self._reasons: list[str] = []
        began_s = elapsed_s()
        self.plain = self._answer()
        self._plain_s = elapsed_s() - began_s

    def choose(self) -> Generator[str, None, list[str]]:
        """Tries everything in turn; yields what it does, and gives the reasons."""
        recipe, device = self._model.predictor.recipe, self._model.predictor.device
        is_slow = self._plain_s > SLOW_S
        if recipe.precision.value != "fp32":
            self._reasons.append(f"precision={recipe.precision.value}: {recipe.precision.why}")
        if is_slow:
            samples = counted_text(self._samples.num_samples, "sample")
            self._reasons.append(
                f"nothing faster was tried: {samples} took {seconds_text(self._plain_s)}"
            )
        if device.type == "cpu" and not is_slow and "num_threads" not in self._fixed:
            yield "trying numbers of threads"
            self._try_threads()
        if not is_slow and self._has_pictures() and "memory_format" not in self._fixed:
            yield "trying channels_last"
            self._keep_if_faster(
                "memory_format=channels_last",
                partial(self._use_channels_last, True),
                partial(self._use_channels_last, False),
            )
        if self._fixed.get("compiled") in COMPILED:
            yield "compiling"
            # The sizes of batches differ: one code for all of them.
            self._try_call("compiled=loss", torch.compile(self._model.call, dynamic=True))
        elif not is_slow and self._fixed.get("capture") != "off" and self._samples.is_tensors:
            graphs = graphs_on(device)
            if graphs is not None:
                yield "recording CUDA graphs"
                self._try_call("capture=step", GraphBuckets(self._model.call, graphs))
        return self._reasons

    def _answer(self) -> Any:
        return self._model.compute(self._samples.content, self._samples.num_samples)

    def _has_pictures(self) -> bool:
        return not self._model.is_channels_last and any(
            tensor.dim() == 4 for tensor in tensors_in(self._samples.content)
        )

    def _try_threads(self) -> None:
        # The threads of a small model wait for each other, and for other programs.
        given, times_s = torch.get_num_threads(), dict[int, float]()
        for count in thread_counts(given):
            torch.set_num_threads(count)
            times_s[count] = seconds_of(self._answer)
        chosen = best_threads(times_s, self._enough_s)
        torch.set_num_threads(chosen)
        if chosen == given:
            self._reasons.append(f"num_threads={given}: its share of the CPUs")
            return
        gain = times_s[given] / times_s[chosen]
        self._reasons.append(f"num_threads={chosen}: {gain:.1f} x as fast as {given}")

    def _use_channels_last(self, is_used: bool) -> None:
        form = torch.channels_last if is_used else torch.contiguous_format
        self._model.predictor.model.to(memory_format=form)  # type: ignore[call-overload]
        self._model.is_channels_last = is_used

    def _try_call(self, name: str, call: Callable[[Any], Any]) -> None:
        """Tries another way to call the model."""
        before = self._model.call
        self._keep_if_faster(
            name,
            partial(setattr, self._model, "call", call),
            partial(setattr, self._model, "call", before),
        )

    def _keep_if_faster(
        self, name: str, change: Callable[[], object], undo: Callable[[], object]
    ) -> None:
        """Changes how the model computes, and undoes it unless the same answer comes sooner."""
        before_s = seconds_of(self._answer, self._plain_s)
        change()
        is_out = False
        try:
            # The first call compiles or records.
            is_same = are_close(self.plain, self._answer(), self._tolerance)
            after_s = seconds_of(self._answer)
            if is_same and after_s < before_s * (1 - _GAIN):
                self._reasons.append(f"{name}: {before_s / after_s:.1f} x faster, the same answer")
                return
            because = "not faster" if is_same else "its answer differs from the plain model's"
        except CaptureBroken:
            raise
        except Exception as error:  # noqa: BLE001 - kept as the reason
            because, is_out = one_line(error), is_out_of_memory(error)
        undo()
        if is_out:
            release_memory()
        self._reasons.append(f"{name} is not used: {because}")

    @property
    def _tolerance(self) -> float:
        return _TOLERANCES[self._model.predictor.recipe.precision.value]


def are_close(expected: Any, found: Any, tolerance: float) -> bool:
    """Whether predictions are the same but for rounding.

    Args:
        expected, found: predictions of the same samples.
        tolerance: the largest difference, relative to the largest expected number.
    """
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(
            are_close(part, found[name], tolerance) for name, part in expected.items()
        )
    if not isinstance(expected, Tensor):
        # Texts and pictures.
        return bool(expected == found)
    if not isinstance(found, Tensor) or expected.shape != found.shape:
        return False
    return difference(expected, found) <= tolerance


def difference(expected: Tensor, found: Tensor) -> float:
    """The largest difference, relative to the largest expected number; infinite for new NaN."""
    if not expected.numel():
        return 0.0
    a, b = expected.double(), found.double()
    is_same = (a == b) | (a.isnan() & b.isnan())
    finite = a[a.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    worst = torch.where(is_same, 0.0, (a - b).abs())
    if not bool(worst.isfinite().all()):
        return float("inf")
    return float(worst.max()) / max(scale, 1e-12)
