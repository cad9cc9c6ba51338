"""What a served model is: its inputs and outputs, where it runs, and what it accepts."""

from __future__ import annotations

from typing import Literal

import msgspec

# KServe's names of data types (Open Inference Protocol, "Tensor Data Types") by numpy's.
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64",
}  # fmt: skip

# What a request may hold: numbers, the bytes of a file, a text, or any other JSON value (which the
# experiment's `decode` reads).
InputKind = Literal["tensors", "file", "text", "value"]
ModelFormat = Literal["run", "onnx", "pt2"]


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of the model. shape: the first dimension counts samples; None varies.

    dtype: numpy's name.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def shape_text(self) -> str:
        """Its shape, such as `[n, 1, 28, 28]`."""
        sizes = ["n", *("any" if size is None else str(size) for size in self.shape[1:])]
        return f"[{', '.join(sizes)}]"


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is ready to answer.

    name: of the run or file; version: tells apart what was swapped in, such as the run's id.
    inputs: the tensors it takes; empty where only `decode` or `predict_data` knows.
    outputs: known from the warm-up; empty where predictions are not tensors.
    accepts: kinds of input; can_stream: whether it generates piece by piece.
    has_decode: JSON values are read by the experiment's `decode`, which may scale numbers, and must
    not be taken for tensors.
    example: a JSON value as the `input` of `POST /predict`, or None where only a file makes sense.
    device, precision: where and how it computes; recipe: `field=value` with its reason, of what
    differs from the plain call of the model.
    batch_s: seconds of a batch by its number of samples, measured in the warm-up.
    max_samples: in one batch; unit: what a sample is, such as `images`.
    num_threads: of the CPU, that a replica computes with; None: it computes elsewhere.
    """

    name: str
    version: str
    format: ModelFormat
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    accepts: tuple[InputKind, ...] = ("tensors",)
    can_stream: bool = False
    has_decode: bool = False
    labels: tuple[str, ...] | None = None
    example: object = None
    device: str = "cpu"
    precision: str = "fp32"
    recipe: tuple[str, ...] = ()
    batch_s: dict[int, float] = {}
    max_samples: int = 1
    unit: str = "samples"
    num_threads: int | None = None
