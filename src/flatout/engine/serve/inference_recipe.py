"""How a replica computes: what is the same answer and measurably faster, tried at the warm-up.

The run's recipe comes first: its precision is never changed. Each choice says why, as
`field=value: reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout.engine.runtime.error_map import is_out_of_memory, one_line
from flatout.engine.serve.batch_times import best_threads, seconds_of, thread_counts
from flatout.engine.serve.graph_buckets import GraphBuckets
from flatout.engine.serve.sample_inputs import SampleInputs
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.serve_protocol import ReplicaStart
from flatout.system.clock import elapsed_s

if TYPE_CHECKING:
    from flatout.engine.serve.run_model import RunModel

# A choice must be faster by this, so that noise does not choose.
_GAIN = 0.1
# Of a slow model nothing is tried: the run's own recipe is safe.
_MOST_S = 0.5
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
        self._start = start
        self._samples = samples
        self.plain: Any = None
        self._reasons: list[str] = []
        self._tolerance = _TOLERANCES[model.predictor.recipe.precision.value]

    def choose(self) -> Generator[str, None, list[str]]:
        """Tries everything in turn; yields what it does, and gives the reasons."""
        recipe, fixed = self._model.predictor.recipe, self._start.fixed
        began_s = elapsed_s()
        plain = self.plain = self._answer()
        is_slow = elapsed_s() - began_s > _MOST_S
        is_cpu = self._model.predictor.device.type == "cpu"
        if recipe.precision.value != "fp32":
            self._reasons.append(f"precision={recipe.precision.value}: {recipe.precision.why}")
        if is_cpu and not is_slow and "num_threads" not in fixed and torch.get_num_threads() > 1:
            yield "trying numbers of threads"
            self._try_threads()
        elif is_cpu and self._start.num_threads is not None:
            self._reasons.append(f"num_threads={torch.get_num_threads()}: its share of the machine")
        if self._has_pictures() and not is_slow and "memory_format" not in fixed:
            yield "trying channels_last"
            self._try_channels_last(plain)
        if fixed.get("compiled", "off") in ("loss", "both"):
            yield "compiling"
            self._try_compiled(plain)
        elif not is_cpu and self._samples.is_tensors:
            yield "recording CUDA graphs"
            self._try_graphs(plain)
        return self._reasons

    def _answer(self) -> Any:
        return self._model.compute(self._samples.content, self._samples.num_samples)

    def _try_threads(self) -> None:
        given, times_s = torch.get_num_threads(), dict[int, float]()
        for count in thread_counts(given):
            torch.set_num_threads(count)
            times_s[count] = seconds_of(self._answer)
        enough_s = self._start.latency_s if self._start.spares_threads else None
        chosen = best_threads(times_s, enough_s)
        torch.set_num_threads(chosen)
        if chosen != given:
            because = f"{_times(times_s[given], times_s[chosen])} as fast as {given}"
            self._reasons.append(f"num_threads={chosen}: {because}")

    def _has_pictures(self) -> bool:
        return not self._model.is_channels_last and any(
            tensor.dim() == 4 for tensor in tensors_in(self._samples.content)
        )

    def _try_channels_last(self, plain: Any) -> None:
        model, network = self._model, self._model.predictor.model
        before_s = seconds_of(self._answer)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.is_channels_last = True
        after_s = seconds_of(self._answer)
        if after_s < before_s * (1 - _GAIN) and self._is_same(plain):
            self._reasons.append(f"memory_format=channels_last: {_times(before_s, after_s)} faster")
            return
        network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        model.is_channels_last = False

    def _try_compiled(self, plain: Any) -> None:
        # The sizes of batches differ: one code for all of them.
        self._try_call(plain, "compiled=loss", torch.compile(self._model.call, dynamic=True))

    def _try_graphs(self, plain: Any) -> None:
        graphs = GraphBuckets(self._model.call, self._model.predictor.device)
        self._try_call(plain, "capture=step", graphs)

    def _try_call(self, plain: Any, name: str, call: Callable[[Any], Any]) -> None:
        """Keeps another way to call the model, if it gives the same answer, and faster."""
        model, before = self._model, self._model.call
        before_s = seconds_of(self._answer)
        try:
            model.call = call
            is_same = self._is_same(plain)
            after_s = seconds_of(self._answer)
        except Exception as error:  # noqa: BLE001 - kept as the reason
            model.call = before
            if is_out_of_memory(error):
                torch.cuda.empty_cache()
            self._reasons.append(f"{name} is not used: {one_line(error)}")
            return
        if is_same and after_s < before_s:
            self._reasons.append(f"{name}: {_times(before_s, after_s)} faster, the same answer")
            return
        model.call = before
        because = "not faster" if is_same else "another answer than the plain model"
        self._reasons.append(f"{name} is not used: {because}")

    def _is_same(self, plain: Any) -> bool:
        return are_close(plain, self._answer(), self._tolerance)


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


def _times(before_s: float, after_s: float) -> str:
    return f"{before_s / after_s:.1f} x"
