"""The KServe v2 Open Inference Protocol, with binary tensors and classification. Pure.

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and
Triton's extensions `binary_tensor_data` and `classification`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.serve_model import DATATYPES, ServedModel, TensorSpec
from flatout.schema.serve_protocol import AnyInput, TensorInput, TextInput, WireTensor
from flatout.serve.dispatcher import Answer, InferRequest
from flatout.serve.inputs import (
    check_finite,
    check_kind,
    check_shape,
    decode_json,
    flattened,
    number_bytes,
    shape_text,
    split_samples,
)
from flatout.serve.limits import ServeLimits, check_num_inputs, num_elements
from flatout.serve.uploaded_files import decoded_text, file_input

EXTENSIONS = ("binary_tensor_data", "classification")
# Texts and files go in as BYTES. Rows, as JSON, come out for these, and where there are no outputs.
BYTES_INPUT = "inputs"
BYTES_OUTPUT = "predictions"
_LENGTH = struct.Struct("<I")
_REFUSED_PARAMETERS = ("sequence_id", "shared_memory_region")


class V2Tensor(msgspec.Struct, frozen=True):
    """An input of a request: data, or `binary_data_size` in parameters."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class V2RequestedOutput(msgspec.Struct, frozen=True):
    """An output that the client asks for."""

    name: str
    parameters: dict[str, Any] = {}


class V2Request(msgspec.Struct, frozen=True):
    """The JSON of `POST /v2/models/{name}/infer`."""

    inputs: list[V2Tensor]
    id: str | None = None
    outputs: list[V2RequestedOutput] = []
    parameters: dict[str, Any] = {}


class V2Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output of a response: data, or `binary_data_size` in parameters."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, int] = {}


class V2Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON of the response."""

    model_name: str
    model_version: str
    outputs: tuple[V2Output, ...]
    id: str | None = None


class V2TensorMetadata(msgspec.Struct, frozen=True):
    """An input or output of the model. A dimension of -1 varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class V2ModelMetadata(msgspec.Struct, frozen=True):
    """The JSON of `GET /v2/models/{name}`."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[V2TensorMetadata, ...]
    outputs: tuple[V2TensorMetadata, ...]


class OutputWish(msgspec.Struct, frozen=True, kw_only=True):
    """How an output is returned. classes: 0 returns the tensor, else so many of the highest."""

    is_binary: bool = False
    classes: int = 0


class V2Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was checked. wishes: the outputs to return, by name."""

    requests: tuple[InferRequest, ...]
    id: str | None
    wishes: dict[str, OutputWish]


_request_decoder = msgspec.json.Decoder(V2Request)


def v2_call(body: bytes, header: str | None, model: ServedModel, limits: ServeLimits) -> V2Call:
    """A request of the protocol, checked against the model.

    Args:
        body: JSON, and the binary tensors after it.
        header: `Inference-Header-Content-Length`: bytes of the JSON; None: all of the body.

    Raises:
        UsageError: body-not-readable, request-invalid, unknown-output,
            protocol-part-not-supported, and what the checks of sizes, shapes and files raise
    """
    json_bytes = len(body) if header is None else _json_length(header, len(body))
    request: V2Request = decode_json(body[:json_bytes], _request_decoder, limits)
    check_num_inputs(len(request.inputs), limits)
    _check_parameters(request.parameters)
    blobs = _binary_parts(request.inputs, body, json_bytes)
    timeout_s = _timeout_s(request.parameters)
    is_bytes = _takes_bytes(model, request.inputs)
    is_raw = bool(model.outputs) and not is_bytes
    wishes = _wishes(request, model, is_raw)
    if is_bytes:
        inputs: list[tuple[AnyInput, int]] = [
            (one, 1) for one in _bytes_inputs(request.inputs[0], blobs[0], model, limits)
        ]
    else:
        inputs = _model_tensors(request.inputs, blobs, model, limits)
    return V2Call(
        requests=tuple(
            InferRequest(input=one, num_samples=count, is_raw=is_raw, deadline_s=timeout_s)
            for one, count in inputs
        ),
        id=request.id,
        wishes=wishes,
    )


def _json_length(header: str, body_bytes: int) -> int:
    # Not int() alone, which also reads "1_0" and " 1".
    if not (header.isascii() and header.isdigit() and len(header) < 20):
        raise _broken(f"`Inference-Header-Content-Length: {header[:50]}` is not a number")
    length = int(header)
    if length > body_bytes:
        raise _broken(
            f"`Inference-Header-Content-Length` is {length}, but the body has {body_bytes} bytes"
        )
    return length


def _broken(problem: str) -> UsageError:
    return UsageError(
        "body-not-readable",
        f"{problem}.",
        fix="send the JSON, then the binary tensors in the order of the inputs",
    )


def _check_parameters(parameters: dict[str, Any]) -> None:
    for name in _REFUSED_PARAMETERS:
        # A sequence 0 is none.
        if parameters.get(name):
            raise UsageError(
                "protocol-part-not-supported",
                f"the parameter `{name}` is not supported.",
                because="a request is answered by itself, from the data in its body",
                fix="leave it out",
            )


def _timeout_s(parameters: dict[str, Any]) -> float | None:
    """The client's deadline: Triton's parameter is in microseconds, and 0 is none."""
    timeout_us = parameters.get("timeout")
    if timeout_us is None or timeout_us == 0:
        return None
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise UsageError(
            "request-invalid", "`timeout` is not a number of microseconds.", fix="leave it out"
        )
    return min(timeout_us, 10**15) / 1e6


def _binary_parts(tensors: Sequence[V2Tensor], body: bytes, position: int) -> list[bytes | None]:
    """For each input its part of the body, or None where its data is in the JSON before it."""
    parts: list[bytes | None] = []
    for tensor in tensors:
        _check_parameters(tensor.parameters)
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            parts.append(None)
            continue
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise _broken(f"`binary_data_size` of `{tensor.name[:100]}` is not a number of bytes")
        if tensor.data is not msgspec.UNSET:
            raise _broken(f"`{tensor.name[:100]}` has its data twice: in the JSON and after it")
        if size > len(body) - position:
            raise _broken(f"the body ends before the data of `{tensor.name[:100]}`")
        parts.append(body[position : position + size])
        position += size
    if position != len(body):
        raise _broken(f"the body has {len(body) - position} bytes that belong to no input")
    return parts


def _model_tensors(
    tensors: Sequence[V2Tensor],
    blobs: Sequence[bytes | None],
    model: ServedModel,
    limits: ServeLimits,
) -> list[tuple[AnyInput, int]]:
    check_kind("tensors", model)
    by_name = {tensor.name: (tensor, blob) for tensor, blob in zip(tensors, blobs, strict=True)}
    wanted = [spec.name for spec in model.inputs]
    if len(by_name) != len(tensors) or by_name.keys() != set(wanted):
        given = ", ".join(tensor.name[:100] for tensor in tensors[:20])
        raise UsageError(
            "request-invalid",
            f"the request has the inputs {given}.",
            because=f"the model `{model.name}` takes {', '.join(wanted) or 'no tensors'}",
            fix="send each of these once",
        )
    wire = tuple(_wire_tensor(*by_name[spec.name], spec, limits) for spec in model.inputs)
    counts = {tensor.shape[0] for tensor in wire}
    if len(counts) != 1:
        raise UsageError(
            "input-shape-wrong",
            f"the inputs have different numbers of samples: {sorted(counts)}.",
            fix="send tensors with the same first dimension",
        )
    num_samples = counts.pop()
    check_num_inputs(num_samples, limits)
    return list(split_samples(TensorInput(wire), num_samples, model.max_samples))


def _wire_tensor(
    tensor: V2Tensor, blob: bytes | None, spec: TensorSpec, limits: ServeLimits
) -> WireTensor:
    import numpy as np

    dtype = np.dtype(spec.dtype)
    if tensor.datatype != DATATYPES.get(spec.dtype):
        raise UsageError(
            "input-type-wrong",
            f"`{spec.name}` has the datatype `{tensor.datatype[:50]}`.",
            because=f"the model takes {DATATYPES.get(spec.dtype, spec.dtype)}",
            fix="convert it before it is sent",
        )
    count = num_elements(tensor.shape, dtype.itemsize, limits)
    check_shape(tensor.shape, spec)
    if blob is None:
        data = number_bytes(_json_data(tensor, spec, count), spec, limits)
    else:
        if len(blob) != count * dtype.itemsize:
            raise _wrong_length(tensor, count * dtype.itemsize, len(blob), "bytes")
        data = blob
        array = np.frombuffer(data, dtype.newbyteorder("<"))
        check_finite(array, spec)
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise _broken(f"`{spec.name}` has bytes other than 0 and 1 as BOOL")
    return WireTensor(spec.name, spec.dtype, tuple(tensor.shape), data)


def _json_data(tensor: V2Tensor, spec: TensorSpec, count: int) -> list[Any]:
    """The elements of a tensor in the JSON: one list, or nested as its shape."""
    if tensor.data is msgspec.UNSET:
        raise UsageError(
            "request-invalid",
            f"`{tensor.name[:100]}` has no data.",
            fix="send `data`, or the parameter `binary_data_size` and the data after the JSON",
        )
    shape, numbers = flattened(tensor.data, spec)
    if len(shape) > 1 and list(shape) != tensor.shape:
        raise UsageError(
            "input-shape-wrong",
            f"the data of `{tensor.name[:100]}` is nested as {shape_text(shape)}.",
            because=f"its shape is {shape_text(tensor.shape)}",
            fix="nest it as its shape, or send one flat list",
        )
    if len(numbers) != count:
        raise _wrong_length(tensor, count, len(numbers), "numbers")
    return numbers


def _wrong_length(tensor: V2Tensor, expected: int, found: int, unit: str) -> UsageError:
    return UsageError(
        "tensor-data-incomplete",
        f"`{tensor.name[:100]}` does not have the data of its shape {shape_text(tensor.shape)}.",
        because=f"{unit} expected: {expected}, found: {found}",
        fix="send all of the tensor",
    )


def _takes_bytes(model: ServedModel, tensors: Sequence[V2Tensor]) -> bool:
    """Whether the request holds texts or files for a model that takes these."""
    has_bytes = len(tensors) == 1 and tensors[0].datatype == "BYTES"
    return has_bytes and bool({"text", "file"} & set(model.accepts))


def _bytes_inputs(
    tensor: V2Tensor, blob: bytes | None, model: ServedModel, limits: ServeLimits
) -> list[AnyInput]:
    if tensor.name != BYTES_INPUT:
        raise UsageError(
            "request-invalid",
            f"the input is named `{tensor.name[:100]}`.",
            fix=f"name it `{BYTES_INPUT}`, as the model's metadata says",
        )
    count = num_elements(tensor.shape, _LENGTH.size, limits)
    check_num_inputs(count, limits)
    if blob is not None:
        items = _length_prefixed(blob)
    else:
        spec = TensorSpec(name=tensor.name, dtype="bytes", shape=(None,))
        texts = _json_data(tensor, spec, count)
        if set(map(type, texts)) != {str}:
            raise UsageError(
                "input-type-wrong",
                f"`{tensor.name}` of the request has other values than texts.",
                fix="send texts, or files as binary data",
            )
        items = [text.encode("utf-8") for text in texts]
    if len(items) != count:
        raise _wrong_length(tensor, count, len(items), "elements")
    is_text = "text" in model.accepts
    return [
        TextInput(decoded_text(item)) if is_text else file_input(item, limits) for item in items
    ]


def _length_prefixed(blob: bytes) -> list[bytes]:
    """The elements of a BYTES tensor: each behind its length."""
    items = []
    position = 0
    while position < len(blob):
        start = position + _LENGTH.size
        if start > len(blob):
            raise _broken("a BYTES tensor ends within a length")
        (length,) = _LENGTH.unpack_from(blob, position)
        if length > len(blob) - start:
            raise _broken("a BYTES tensor ends within an element")
        items.append(blob[start : start + length])
        position = start + length
    return items


def _wishes(request: V2Request, model: ServedModel, is_raw: bool) -> dict[str, OutputWish]:
    """The outputs that the client asks for, or all."""
    names = [spec.name for spec in model.outputs] if is_raw else [BYTES_OUTPUT]
    is_binary = request.parameters.get("binary_data_output") is True
    wishes = {} if request.outputs else dict.fromkeys(names, OutputWish(is_binary=is_binary))
    for output in request.outputs:
        if output.name not in names:
            raise UsageError(
                "unknown-output",
                f"the model `{model.name}` has no output `{output.name[:100]}`.",
                fix=nearest(output.name[:100], names),
            )
        _check_parameters(output.parameters)
        classes = output.parameters.get("classification", 0)
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
            raise UsageError(
                "request-invalid",
                "`classification` is not a number of classes.",
                fix="use 1 or more",
            )
        if classes and not is_raw:
            raise UsageError(
                "request-invalid",
                f"`{output.name}` has no classes.",
                because="it contains rows as JSON, which name the label already",
                fix="leave out `classification`",
            )
        wishes[output.name] = OutputWish(
            is_binary=output.parameters.get("binary_data", is_binary) is True, classes=classes
        )
    return wishes


def v2_response(call: V2Call, answers: Sequence[Answer]) -> tuple[bytes, int | None]:
    """The body of the response, and the length of its JSON; None: it is all JSON."""
    model = answers[0].model
    tensors = _joined([answer.tensors for answer in answers])
    if not tensors:
        rows = [msgspec.json.encode(row) for answer in answers for row in answer.rows]
        tensors = (WireTensor(BYTES_OUTPUT, "bytes", (len(rows),), _prefixed(rows)),)
    outputs, blobs = [], []
    for tensor in tensors:
        wish = call.wishes.get(tensor.name)
        if wish is None:
            continue
        shown = _classified(tensor, wish.classes, model.labels) if wish.classes else tensor
        output, blob = _output(shown, wish)
        outputs.append(output)
        blobs.append(blob)
    text = msgspec.json.encode(
        V2Response(model.name, model.version, outputs=tuple(outputs), id=call.id)
    )
    binary = [blob for blob in blobs if blob is not None]
    if not binary:
        return text, None
    return b"".join((text, *binary)), len(text)


def _joined(parts: Sequence[tuple[WireTensor, ...]]) -> tuple[WireTensor, ...]:
    """Tensors of the pieces of a request, put together along the first dimension."""
    if len(parts) == 1:
        return parts[0]
    return tuple(
        WireTensor(
            pieces[0].name,
            pieces[0].dtype,
            (sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]),
            b"".join(piece.data for piece in pieces),
        )
        for pieces in zip(*parts, strict=True)
    )


def _output(tensor: WireTensor, wish: OutputWish) -> tuple[V2Output, bytes | None]:
    datatype = "BYTES" if tensor.dtype == "bytes" else DATATYPES[tensor.dtype]
    if wish.is_binary:
        size = {"binary_data_size": len(tensor.data)}
        return V2Output(tensor.name, datatype, tensor.shape, parameters=size), tensor.data
    if tensor.dtype == "bytes":
        data: list[Any] = [
            item.decode("utf-8", errors="replace") for item in _length_prefixed(tensor.data)
        ]
    else:
        import numpy as np

        data = np.frombuffer(tensor.data, np.dtype(tensor.dtype).newbyteorder("<")).tolist()
    return V2Output(tensor.name, datatype, tensor.shape, data=data), None


def _classified(tensor: WireTensor, count: int, labels: Sequence[str] | None) -> WireTensor:
    """The highest values of each sample as `value:index:label`, as Triton writes them."""
    import numpy as np

    array = np.frombuffer(tensor.data, np.dtype(tensor.dtype).newbyteorder("<"))
    rows = array.astype(np.float64).reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
    count = min(count, rows.shape[1])
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    names = labels if labels is not None and len(labels) == rows.shape[1] else None
    texts = [
        f"{row[index]:f}:{index}{f':{names[index]}' if names else ''}".encode()
        for row, best in zip(rows, order.tolist(), strict=True)
        for index in best
    ]
    return WireTensor(tensor.name, "bytes", (len(rows), count), _prefixed(texts))


def _prefixed(items: Sequence[bytes]) -> bytes:
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def model_metadata(model: ServedModel) -> V2ModelMetadata:
    """What clients ask before they send tensors."""
    inputs = tuple(map(_described, model.inputs)) if "tensors" in model.accepts else ()
    if {"text", "file"} & set(model.accepts) and not inputs:
        inputs = (V2TensorMetadata(BYTES_INPUT, "BYTES", (-1,)),)
    outputs = tuple(map(_described, model.outputs))
    return V2ModelMetadata(
        name=model.name,
        versions=(model.version,),
        platform=f"flatout_{model.format}",
        inputs=inputs,
        outputs=outputs or (V2TensorMetadata(BYTES_OUTPUT, "BYTES", (-1,)),),
    )


def _described(spec: TensorSpec) -> V2TensorMetadata:
    shape = tuple(-1 if size is None else size for size in spec.shape)
    return V2TensorMetadata(spec.name, DATATYPES.get(spec.dtype, spec.dtype), shape)
