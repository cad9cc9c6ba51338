"""Loads an exported .onnx file, with onnxruntime. torch is not needed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.engine.predict.array_rows import Array
from flatout.engine.serve.exported_model import ExportedModel, num_threads_of
from flatout.errors import RunFailed, UsageError
from flatout.schema.export_protocol import FACTS, ExportedFacts
from flatout.schema.serve_model import TensorSpec
from flatout.schema.serve_protocol import ReplicaStart
from flatout.system.source_path import install_command

# onnxruntime's names of element types by NumPy's.
# Source: onnxruntime, include/onnxruntime/core/framework/data_types.h.
_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(int16)": "int16",
    "tensor(int8)": "int8", "tensor(uint64)": "uint64", "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16", "tensor(uint8)": "uint8", "tensor(bool)": "bool",
}  # fmt: skip


def open_onnx(start: ReplicaStart) -> ExportedModel:
    """A file as a model.

    Raises:
        UsageError: package-not-installed, device-not-here.
        RunFailed: exported-file-not-readable.
    """
    path = Path(start.model)
    session, device = open_session(path, start)
    facts = facts_of(session, path)
    names = [output.name for output in session.get_outputs()]
    inputs = [given.name for given in session.get_inputs()]

    def compute(arrays: Sequence[Array]) -> Mapping[str, Array]:
        outputs = session.run(names, dict(zip(inputs, arrays, strict=True)))
        return dict(zip(names, outputs, strict=True))

    return ExportedModel(path.name, "onnx", facts, device, compute, num_threads_of(start))


def open_session(path: Path, start: ReplicaStart) -> tuple[Any, str]:
    """onnxruntime's session of a file, and its device."""
    library = onnxruntime()
    options = library.SessionOptions()
    # 0: by its own choice.
    options.intra_op_num_threads = num_threads_of(start) or 0
    # Errors come as exceptions; warnings of its optimizer are not for a person.
    options.log_severity_level = 3
    device = start.fixed.get("device", "cpu")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.startswith("cuda"):
        number = int(device.partition(":")[2] or 0)
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": number}))
    try:
        session = library.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        raise RunFailed(
            "exported-file-not-readable",
            f"onnxruntime cannot load {path}.",
            because=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="export the run again: flatout export RUN --to onnx",
        ) from error
    # It falls back to the CPU by itself, such as without the libraries of CUDA.
    used = session.get_providers()
    if device.startswith("cuda") and "CUDAExecutionProvider" not in used:
        raise UsageError(
            "device-not-here",
            f"`--device {device}`: onnxruntime cannot use a GPU here.",
            because=f"it uses {', '.join(used)}",
            fix=f"use --device cpu, or {install_command('onnxruntime-gpu')}",
        )
    return session, device


def onnxruntime() -> Any:
    """The library.

    Raises:
        UsageError: package-not-installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_package("onnxruntime", error) from error
    return onnxruntime


def missing_package(name: str, error: ImportError) -> UsageError:
    """The error for a package of the extra `onnx` that is not installed."""
    return UsageError(
        "package-not-installed",
        f"this needs the package {name}, which is not installed.",
        because=str(error),
        fix=install_command(name),
    )


def facts_of(session: Any, path: Path) -> ExportedFacts:
    """What a file says of itself; of a file that flatout has not written, its tensors."""
    text = session.get_modelmeta().custom_metadata_map.get(FACTS)
    if text is not None:
        try:
            return msgspec.json.decode(text, type=ExportedFacts)
        except msgspec.DecodeError as error:
            raise RunFailed(
                "exported-file-not-readable",
                f"{path} is damaged or from another version.",
                because=str(error),
                fix="export the run again: flatout export RUN --to onnx",
            ) from error
    return ExportedFacts(
        flatout="", run="", step=0,
        inputs=tuple(map(_spec, session.get_inputs())),
        outputs=tuple(map(_spec, session.get_outputs())),
    )  # fmt: skip


def _spec(given: Any) -> TensorSpec:
    # Dimensions that vary have a name, or none.
    sizes = [size if isinstance(size, int) else None for size in given.shape]
    dtype = _TYPES.get(given.type)
    if dtype is None or not sizes:
        raise RunFailed(
            "exported-file-not-readable",
            f"`{given.name}` is a {given.type} of shape {given.shape}, which cannot be served.",
            fix="export the model with tensors whose first dimension is the number of samples",
        )
    return TensorSpec(name=given.name, dtype=dtype, shape=(None, *sizes[1:]))
