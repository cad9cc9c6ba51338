"""Turns an exported ONNX file into one that computes in 8 bits, and says what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.engine.serve.export_forms import Answer
from flatout.engine.serve.onnx_model import missing_package
from flatout.engine.serve.sample_inputs import SampleInputs
from flatout.engine.tensors.nested import tensors_in
from flatout.errors import RunFailed
from flatout.schema.units import counted_text

# The most that the metric may fall: one point in a hundred.
ALLOWED_FALL = 0.01
# Samples that are judged in one call: all of them may not fit in the memory.
_AT_ONCE = 32
# Convolutions in 8 bits need to know the range of what they are given.
_NEEDS_RANGES = ("Conv", "ConvTranspose")


def quantize(full: Path, quantized: Path, calibration: SampleInputs) -> None:
    """Writes the 8-bit form of an ONNX file.

    Weights and products become 8-bit numbers. Without convolutions, the range of the activations is
    measured in each call (dynamic); with them, once from samples of the training data (static).
    """
    try:
        import onnx
        from onnxruntime import quantization
    except ImportError as error:
        raise missing_package(error.name or "onnxruntime", error) from error
    model = onnx.load(str(full))
    properties = list(model.metadata_props)
    if not any(node.op_type in _NEEDS_RANGES for node in model.graph.node):
        quantization.quantize_dynamic(str(full), str(quantized))
    else:
        names = [given.name for given in model.graph.input]
        quantization.quantize_static(
            str(full), str(quantized), _reader(names, calibration), per_channel=True,
            # Without VNNI, sums of two products of 8 bits saturate.
            reduce_range=True, activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    written = onnx.load(str(quantized))
    del written.metadata_props[:]
    written.metadata_props.extend(properties)
    onnx.save(written, str(quantized))


def _reader(names: list[str], samples: SampleInputs) -> Any:
    """Samples one by one, as onnxruntime asks for them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = _batches(names, samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    return Reader()


def _batches(names: list[str], samples: SampleInputs) -> Iterator[dict[str, Any]]:
    tensors = list(tensors_in(samples.content))
    for row in range(samples.num_samples):
        yield {
            name: tensor[row : row + 1].numpy() for name, tensor in zip(names, tensors, strict=True)
        }


def judged(
    samples: SampleInputs, full: Answer, quantized: Answer, num_classes: int | None
) -> tuple[str, float, float]:
    """A metric, its value for the full model, and for the quantized one; 1 is best.

    Of a classifier the accuracy, otherwise the share of the variance that is explained: of the
    targets in the validation data, or else of what the full model predicts.

    Raises:
        RunFailed: quantized-model-is-worse.
    """
    before, after = _first_output(full, samples), _first_output(quantized, samples)
    is_classifier = num_classes is not None and before.dim() == 2 and before.shape[1] == num_classes
    if is_classifier:
        targets = samples.targets
        is_known = targets is not None and targets.dim() == 1 and not targets.is_floating_point()
        wanted = targets if is_known and targets is not None else before.argmax(dim=1)
        name = "accuracy" if is_known else "share of equal labels"
        scores = [float(part.argmax(dim=1).eq(wanted).float().mean()) for part in (before, after)]
    else:
        targets = samples.targets
        is_known = targets is not None and targets.shape == before.shape
        wanted = targets.float() if is_known and targets is not None else before
        name = "explained variance"
        scores = [_explained(wanted, part) for part in (before, after)]
    if not scores[1] >= scores[0] - ALLOWED_FALL:
        raise RunFailed(
            "quantized-model-is-worse",
            f"in 8 bits the {name} falls from {scores[0]:.4f} to {scores[1]:.4f}.",
            because=f"measured on {counted_text(len(before), 'sample')}; it may fall by "
            f"{ALLOWED_FALL}",
            fix="export it without --int8",
        )
    return name, scores[0], scores[1]


def _first_output(answer: Answer, samples: SampleInputs) -> Tensor:
    parts = [
        next(iter(answer(samples.piece(start, start + _AT_ONCE)).values()))
        for start in range(0, samples.num_samples, _AT_ONCE)
    ]
    return torch.cat(parts).float()


def _explained(wanted: Tensor, found: Tensor) -> float:
    spread = float((wanted - wanted.mean()).square().mean())
    missed = float(torch.nan_to_num(wanted - found, nan=float("inf")).square().mean())
    return 1 - missed / max(spread, 1e-12)
