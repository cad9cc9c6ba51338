"""Requests to `POST /predict`: from bytes to inputs that fit the model. Pure.

An input is one sample: numbers (nested lists; an object of them by name where the model takes
several tensors), a text, `{"base64": "..."}`, or any JSON value for the experiment's `decode`.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.serve_model import InputKind, ServedModel, TensorSpec
from flatout.schema.serve_protocol import (
    AnyInput,
    FileInput,
    TensorInput,
    TextInput,
    ValueInput,
    WireTensor,
)
from flatout.schema.units import counted_text
from flatout.serve.dispatcher import InferRequest
from flatout.serve.limits import (
    ServeLimits,
    check_depth,
    check_num_inputs,
    num_elements,
    too_deep,
)
from flatout.serve.uploaded_files import decoded_text, file_input, multipart_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

_KIND_WORDS: dict[InputKind, str] = {
    "tensors": "numbers", "file": "files", "text": "texts", "value": "JSON values",
}  # fmt: skip
MOST_TOP = 10_000
# Of what a client has sent, in an error: characters, dimensions.
_MOST_TEXT = 300
_MOST_SIZES = 16


class PredictBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of `POST /predict`.

    inputs: several samples; input: one. top: classes to report for each, with labels.
    timeout_s: how long the client waits.
    """

    inputs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    input: Any = msgspec.UNSET
    top: int | None = None
    timeout_s: float | None = None


class PredictAnswer(msgspec.Struct, frozen=True):
    """The JSON of its response. predictions: for each input its rows, one for each sample in it.

    NaN is null in JSON.
    """

    model: str
    version: str
    predictions: list[Sequence[dict[str, Any]]]


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the query of `POST /predict` says; the fields of a JSON body replace it.

    Raises:
        UsageError: request-invalid
    """

    top: int = 1
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST_TOP:
            raise UsageError(
                "request-invalid", f"`top` is {self.top}.", fix=f"use a number from 1 to {MOST_TOP}"
            )
        if self.timeout_s is not None and not 0 < self.timeout_s < float("inf"):
            raise UsageError(
                "request-invalid",
                f"the timeout is {self.timeout_s} s.",
                fix="use a time above 0",
            )


_STREAM_WORDS = ("true", "1", "", "false", "0")
_body_decoder = msgspec.json.Decoder(PredictBody)


def predict_requests(
    body: bytes, content_type: str, options: CallOptions, model: ServedModel, limits: ServeLimits
) -> tuple[InferRequest, ...]:
    """The inputs in the body of `POST /predict`, checked against the model.

    Raises:
        UsageError: body-not-readable, content-type-not-supported, request-invalid, and what the
            checks of sizes, shapes and files raise
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("application/json", ""):
        return _json_requests(body, options, model, limits)
    if kind == "multipart/form-data":
        inputs = multipart_inputs(body, content_type, limits)
    elif kind == "application/octet-stream" or kind.startswith("image/"):
        inputs = [file_input(body, limits)]
    elif kind == "text/plain":
        inputs = [TextInput(decoded_text(body))]
    else:
        raise UsageError(
            "content-type-not-supported",
            f"the content type `{kind[:100]}` is not supported.",
            fix="send JSON with `Content-Type: application/json`, files as multipart/form-data, or "
            "one file as application/octet-stream or image/*",
        )
    for one in inputs:
        check_kind("file" if isinstance(one, FileInput) else "text", model)
    return tuple(_request(one, options) for one in inputs)


def _request(one: AnyInput, options: CallOptions, count: int = 1) -> InferRequest:
    return InferRequest(input=one, num_samples=count, top=options.top, deadline_s=options.timeout_s)


def _json_requests(
    body: bytes, options: CallOptions, model: ServedModel, limits: ServeLimits
) -> tuple[InferRequest, ...]:
    decoded: PredictBody = decode_json(body, _body_decoder, limits)
    if (decoded.inputs is msgspec.UNSET) == (decoded.input is msgspec.UNSET):
        raise UsageError(
            "request-invalid",
            "the body must have either `inputs` or `input`.",
            fix='send {"inputs": [...]} for several samples, {"input": ...} for one',
        )
    values = [decoded.input] if decoded.inputs is msgspec.UNSET else decoded.inputs
    check_num_inputs(len(values), limits)
    asked = CallOptions(
        top=options.top if decoded.top is None else decoded.top,
        timeout_s=options.timeout_s if decoded.timeout_s is None else decoded.timeout_s,
    )
    if _are_tensors(values, model):
        tensors = _tensor_inputs(values, model, limits)
        return tuple(_request(one, asked, count) for one, count in tensors)
    return tuple(_request(_other_input(value, model, limits), asked) for value in values)


def decode_json(body: bytes, decoder: msgspec.json.Decoder[Any], limits: ServeLimits) -> Any:
    """A body as the decoder's type. JSON has no NaN or Infinity.

    Raises:
        UsageError: body-not-readable, request-invalid, json-too-deep
    """
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise UsageError(
            "request-invalid",
            "the JSON of the request does not have the form of this route.",
            # It may name a field of any length.
            because=str(error)[:_MOST_TEXT],
            fix="see /docs for the form and an example",
        ) from error
    except (msgspec.DecodeError, ValueError) as error:
        # ValueError: not UTF-8, or a number of thousands of digits.
        raise UsageError(
            "body-not-readable",
            "the body of the request is not JSON.",
            because=str(error),
            fix="send JSON (RFC 8259) in UTF-8; NaN and Infinity are no part of it",
        ) from error
    except RecursionError as error:
        raise too_deep(limits) from error
    check_depth(body, limits)
    return decoded


def check_kind(kind: InputKind, model: ServedModel) -> None:
    """Refuses a kind of input that the model does not take.

    Raises:
        UsageError: input-kind-not-accepted
    """
    if kind not in model.accepts:
        raise _not_accepted(kind, model)


def _not_accepted(kind: InputKind, model: ServedModel) -> UsageError:
    taken = [one for one in model.accepts if one != "value" or takes_values(model)]
    return UsageError(
        "input-kind-not-accepted",
        f"the model `{model.name}` does not take {_KIND_WORDS[kind]}.",
        fix=f"send what it takes: {', '.join(_KIND_WORDS[one] for one in taken)}",
    )


def takes_values(model: ServedModel) -> bool:
    """Whether JSON values are left to a replica: it knows more than the shapes of tensors."""
    return "value" in model.accepts and (model.has_decode or not model.inputs)


def _are_tensors(values: list[Any], model: ServedModel) -> bool:
    """Whether the inputs are meant as tensors. A list with a text in it fails as a tensor later."""
    if "tensors" not in model.accepts or not model.inputs or takes_values(model):
        return False
    first = values[0]
    if isinstance(first, dict):
        return first.keys() == {spec.name for spec in model.inputs}
    return isinstance(first, list | int | float)


def _other_input(value: Any, model: ServedModel, limits: ServeLimits) -> AnyInput:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        check_kind("file", model)
        return file_input(_from_base64(value["base64"]), limits)
    if isinstance(value, str) and "text" in model.accepts:
        return TextInput(value)
    if takes_values(model):
        return _value_input(value)
    if isinstance(value, list | int | float) and "tensors" not in model.accepts:
        raise _not_accepted("tensors", model)
    raise _not_accepted("text" if isinstance(value, str) else "value", model)


def _value_input(value: Any) -> ValueInput:
    """A JSON value, already as a message to a replica has it: that has no larger integers."""
    try:
        return ValueInput(msgspec.Raw(msgspec.msgpack.encode(value)))
    except OverflowError as error:
        raise UsageError(
            "request-invalid",
            "the request has an integer of more than 64 bits.",
            fix="send it as a text or a fraction",
        ) from error


def _from_base64(text: Any) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(
            "body-not-readable",
            "`base64` cannot be decoded.",
            because=str(error),
            fix="encode the bytes of the file with base64 (RFC 4648)",
        ) from error
    raise UsageError("request-invalid", "`base64` is not a text.", fix="send a text")


def _tensor_inputs(
    values: list[Any], model: ServedModel, limits: ServeLimits
) -> list[tuple[AnyInput, int]]:
    """Samples as tensors: together where their shapes are equal, else one by one."""
    columns = [_column(values, spec, model) for spec in model.inputs]
    try:
        tensors = tuple(
            _sample_tensor(column, spec, limits)
            for column, spec in zip(columns, model.inputs, strict=True)
        )
    except _Ragged:
        if len(values) == 1 or all(None not in spec.shape[1:] for spec in model.inputs):
            raise
        return [item for value in values for item in _tensor_inputs([value], model, limits)]
    return list(split_samples(TensorInput(tensors), len(values), model.max_samples))


def _column(values: list[Any], spec: TensorSpec, model: ServedModel) -> list[Any]:
    """The values of one tensor."""
    if len(model.inputs) == 1 and not isinstance(values[0], dict):
        return values
    names = {one.name for one in model.inputs}
    for number, value in enumerate(values):
        if not isinstance(value, dict) or value.keys() != names:
            given = sorted(value)[:20] if isinstance(value, dict) else type(value).__name__
            raise UsageError(
                "request-invalid",
                f"input {number} does not have the model's tensors: {str(given)[:_MOST_TEXT]}.",
                fix=f"send an object with {', '.join(sorted(names))}",
            )
    return [value[spec.name] for value in values]


class _Ragged(UsageError):
    """The samples of a request differ in shape, or lists within one sample differ in length."""


def _sample_tensor(values: list[Any], spec: TensorSpec, limits: ServeLimits) -> WireTensor:
    """JSON samples as one tensor with the shape and dtype of the model.

    Dimensions of 1 may be missing: 28 x 28 numbers are taken for 1 x 28 x 28.
    """
    shape, numbers = flattened(values, spec)
    given, wanted = shape[1:], spec.shape[1:]
    if not _fits(given, wanted):
        fixed = tuple(size for size in wanted if size is not None and size != 1)
        if None in wanted or fixed != tuple(size for size in given if size != 1):
            raise UsageError(
                "input-shape-wrong",
                f"a sample of `{spec.name}` has the shape {shape_text(given)}.",
                fix=f"send samples of shape {shape_text(wanted)}",
            )
        shape = (shape[0], *(size for size in wanted if size is not None))
    return WireTensor(spec.name, spec.dtype, shape, number_bytes(numbers, spec, limits))


def flattened(values: list[Any], spec: TensorSpec) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and their elements in C order.

    numpy's own reading of nested lists would make texts as long as the longest of them.

    Raises:
        UsageError: input-shape-wrong
    """
    shape, level = [len(values)], values
    while level and type(level[0]) is list:
        if set(map(type, level)) != {list} or len(set(map(len, level))) != 1:
            raise _Ragged(
                "input-shape-wrong",
                f"the numbers for `{spec.name}` do not form a tensor.",
                because="lists at the same depth differ in length, or are mixed with numbers",
                fix=f"send samples of shape {shape_text(spec.shape[1:])}",
            )
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    return tuple(shape), level


# What may be in JSON for a kind of dtype, by Python's types.
_JSON_TYPES: dict[str, set[type]] = {
    "f": {int, float}, "i": {int}, "u": {int}, "b": {bool},
}  # fmt: skip
_JSON_WORDS = {"f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "true and false"}


def number_bytes(numbers: list[Any], spec: TensorSpec, limits: ServeLimits) -> bytes:
    """JSON numbers as the data of a tensor.

    Raises:
        UsageError: input-type-wrong, input-not-finite, tensor-too-large
    """
    import numpy as np

    dtype = np.dtype(spec.dtype)
    num_elements((len(numbers),), dtype.itemsize, limits)
    packed = _packed_floats(numbers, spec)
    if packed is not None:
        return packed
    if not set(map(type, numbers)) <= _JSON_TYPES[dtype.kind]:
        raise _wrong_type(spec, dtype.kind, "other values")
    if dtype.kind in "iu" and numbers:
        info = np.iinfo(dtype)
        if min(numbers) < info.min or max(numbers) > info.max:
            raise _wrong_type(spec, dtype.kind, "numbers outside of its range")
    try:
        with np.errstate(over="ignore"):
            array = np.array(numbers, dtype)
    except OverflowError as error:
        raise _wrong_type(spec, dtype.kind, "numbers outside of its range") from error
    check_finite(array, spec)
    return array.astype(dtype.newbyteorder("<"), copy=False).tobytes()


# What `struct` calls the dtypes that most models take.
_FLOAT_CODES = {"float32": "f", "float64": "d"}
# Of more, the memory that all of them take on the way matters more than time.
_MOST_PACKED = 65_536


def _packed_floats(numbers: list[Any], spec: TensorSpec) -> bytes | None:
    """JSON numbers as the data of a tensor of floats, in less time than numpy takes for few.

    None: they are too many, not numbers, or the tensor cannot hold them. JSON has no NaN and no
    infinity.
    """
    code = _FLOAT_CODES.get(spec.dtype)
    if code is None or len(numbers) > _MOST_PACKED or not set(map(type, numbers)) <= {int, float}:
        return None
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except (OverflowError, struct.error):
        return None


def _wrong_type(spec: TensorSpec, kind: str, given: str) -> UsageError:
    return UsageError(
        "input-type-wrong",
        f"`{spec.name}` of the request has {given}.",
        because=f"the model takes {_JSON_WORDS[kind]} ({spec.dtype})",
        fix=f"send {_JSON_WORDS[kind]} that {spec.dtype} can hold",
    )


def check_finite(array: Array, spec: TensorSpec) -> None:
    """Refuses NaN and infinity.

    Raises:
        UsageError: input-not-finite
    """
    import numpy as np

    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UsageError(
            "input-not-finite",
            f"`{spec.name}` contains NaN or infinity as {spec.dtype}.",
            because="predictions for these would mean nothing",
            fix="replace them, or leave those samples out",
        )


def check_shape(shape: Sequence[int], spec: TensorSpec) -> None:
    """Refuses a tensor that is not made of samples as the model takes them.

    Raises:
        UsageError: input-shape-wrong
    """
    if len(shape) != len(spec.shape) or shape[0] < 1 or not _fits(shape[1:], spec.shape[1:]):
        raise UsageError(
            "input-shape-wrong",
            f"`{spec.name}` has the shape {shape_text(shape)}.",
            because=f"the model takes {shape_text(spec.shape)}; the first dimension counts samples",
            fix="send that shape",
        )


def _fits(given: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(given) == len(wanted) and all(
        size == want or (want is None and size > 0)
        for size, want in zip(given, wanted, strict=True)
    )


def shape_text(shape: Sequence[int | None]) -> str:
    """(None, 28) -> "[any, 28]"; a client's shape may be very long."""
    sizes = ["any" if size is None else str(size)[:20] for size in shape[:_MOST_SIZES]]
    return f"[{', '.join([*sizes, '...'] if len(shape) > _MOST_SIZES else sizes)}]"


def split_samples(
    one: TensorInput, num_samples: int, max_samples: int
) -> list[tuple[TensorInput, int]]:
    """Samples in pieces that fit into a batch."""
    if num_samples <= max_samples:
        return [(one, num_samples)]
    pieces = []
    for start in range(0, num_samples, max_samples):
        count = min(max_samples, num_samples - start)
        tensors = tuple(_rows(tensor, start, count) for tensor in one.tensors)
        pieces.append((TensorInput(tensors), count))
    return pieces


def _rows(tensor: WireTensor, start: int, count: int) -> WireTensor:
    row_bytes = len(tensor.data) // tensor.shape[0]
    return WireTensor(
        tensor.name,
        tensor.dtype,
        (count, *tensor.shape[1:]),
        tensor.data[start * row_bytes : (start + count) * row_bytes],
    )


def query_options(query: dict[str, str]) -> CallOptions:
    """`top` and `timeout_s` from the query, of which all is checked.

    Raises:
        UsageError: request-invalid
    """
    known = {"top", "timeout_s", "stream"}
    for name in query:
        if name not in known:
            raise UsageError(
                "request-invalid",
                f"`{name[:50]}` is no parameter of this route.",
                fix=nearest(name[:50], known),
            )
    if query.get("stream", "").lower() not in _STREAM_WORDS:
        raise UsageError(
            "request-invalid",
            f"`stream={query['stream'][:50]}` is neither true nor false.",
            fix="use `stream=true`, or leave it out",
        )
    try:
        top = int(query.get("top", "1"))
        timeout_s = float(query["timeout_s"]) if "timeout_s" in query else None
    except ValueError as error:
        raise UsageError(
            "request-invalid",
            "a parameter of the query is not a number.",
            because=str(error)[:200],
            fix="use numbers for `top` and `timeout_s`",
        ) from error
    return CallOptions(top=top, timeout_s=timeout_s)


def one_request(requests: Sequence[InferRequest]) -> InferRequest:
    """The only request of a call whose answer is streamed.

    Raises:
        UsageError: request-invalid
    """
    if len(requests) != 1:
        raise UsageError(
            "request-invalid",
            f"the request has {counted_text(len(requests), 'input')}.",
            because="one answer can be streamed at a time",
            fix="send one input in each request",
        )
    return requests[0]
