"""The request to export a run's weights, the lines of the reply, and what a file says of itself.

A job goes to a process of its own as one JSON document; its replies come back as JSON lines.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.schema.experiment_spec import Value
from flatout.schema.predict_protocol import Noted, ProcessFailed, Reply
from flatout.schema.serve_model import TensorSpec

ExportForm = Literal["onnx", "pt2", "safetensors", "hf"]
# What a file or folder of each form is called; the folder of `hf` has no ending.
ENDINGS: dict[ExportForm, str] = {
    "onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors", "hf": ""
}  # fmt: skip
# Where a file keeps `ExportedFacts`: the name of a property, or of a file in an archive.
FACTS = "flatout"
FACTS_FILE = "flatout.json"


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout export` as data.

    form: of the file. output: None names it after the run, in this folder.
    is_int8: weights and products in 8 bits. opset: of ONNX; None leaves it to torch.
    experiment, settings, python, env, is_trusted: as in `InferenceRequest`.
    """

    run: str
    form: ExportForm
    output: str | None = None
    is_int8: bool = False
    opset: int | None = None
    experiment: str | None = None
    settings: tuple[str, ...] = ()
    python: str | None = None
    env: str | None = None
    is_trusted: bool = False


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the process. folder: of the run; output: a path that does not exist yet."""

    folder: str
    form: ExportForm
    output: str
    is_int8: bool = False
    opset: int | None = None
    experiment: str | None = None
    parameters: dict[str, Value] = {}


class ExportedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an exported file says of itself.

    flatout: the version that wrote it. run, step: whose weights. preprocessing: what must be done
    to data before it is given to the file, in words. precision: `fp32` or `int8`.
    """

    flatout: str
    run: str
    step: int
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    labels: tuple[str, ...] | None = None
    unit: str = "samples"
    precision: str = "fp32"
    preprocessing: str = ""
    example: Any = None


class ExportCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the exported file next to the run's, on the same samples.

    data: which samples, such as `validation`. batch_sizes: in which it was tried.
    difference: the largest, relative to the largest number; tolerance: what is allowed.
    metric, before, after, allowed_fall: of int8, by what it is judged.
    """

    num_samples: int
    data: str
    batch_sizes: tuple[int, ...]
    difference: float
    tolerance: float
    metric: str | None = None
    before: float | None = None
    after: float | None = None
    allowed_fall: float | None = None


class Exporting(Reply, frozen=True, kw_only=True, tag="exporting"):
    """What it does."""

    what: str


class Exported(Reply, frozen=True, kw_only=True, tag="exported"):
    """The file or folder is in its place, and was checked."""

    path: str
    form: ExportForm
    size_bytes: int
    facts: ExportedFacts
    checked: ExportCheck
    opset: int | None = None


ExportReply = Exporting | Noted | Exported | ProcessFailed
