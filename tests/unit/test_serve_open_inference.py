"""The v2 protocol: what requests become, what responses look like, and hostile bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import FlatoutError, UsageError
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.schema.serve_protocol import FileInput, TensorInput, TextInput, WireTensor
from flatout.serve.dispatcher import Answer
from flatout.serve.limits import ServeLimits
from flatout.serve.open_inference import (
    V2Call,
    V2TensorMetadata,
    model_metadata,
    v2_call,
    v2_response,
)

LIMITS = ServeLimits(tensor_bytes=1 << 20, num_inputs=100)
MODEL = ServedModel(
    name="m",
    version="7",
    format="run",
    inputs=(TensorSpec(name="x", dtype="float32", shape=(None, 2)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(None, 3)),),
    labels=("a", "b", "c"),
    max_samples=4,
)
TEXTS = ServedModel(name="t", version="1", format="run", accepts=("text",), max_samples=4)
X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}


def call(request: dict[str, Any], binary: bytes = b"", model: ServedModel = MODEL) -> V2Call:
    text = json.dumps(request).encode()
    return v2_call(text + binary, str(len(text)) if binary else None, model, LIMITS)


def rule_of(request: dict[str, Any], binary: bytes = b"", model: ServedModel = MODEL) -> str:
    with pytest.raises(UsageError) as caught:
        call(request, binary, model)
    return caught.value.rule


def x_with(**more: Any) -> dict[str, Any]:
    return {"inputs": [{**X, **more}]}


def in_binary(size: int, **more: Any) -> dict[str, Any]:
    tensor = {name: value for name, value in X.items() if name != "data"}
    return {"inputs": [{**tensor, "parameters": {"binary_data_size": size}, **more}]}


def test_v2_call_when_the_data_is_json() -> None:
    for data in ([1, 2], [[1, 2]]):
        found = call({**x_with(data=data), "id": "7", "parameters": {"timeout": 500_000}})
        (request,) = found.requests
        assert isinstance(request.input, TensorInput)
        assert request.input.tensors[0] == WireTensor(
            "x", "float32", (1, 2), struct.pack("<2f", 1, 2)
        )
        assert (request.num_samples, request.is_raw, request.deadline_s) == (1, True, 0.5)
        assert found.id == "7"


def test_v2_call_when_the_data_is_binary() -> None:
    data = struct.pack("<12f", *range(12))
    found = call(in_binary(48, shape=[6, 2]), data)
    assert [request.num_samples for request in found.requests] == [4, 2]
    first = found.requests[0].input
    assert isinstance(first, TensorInput)
    assert first.tensors[0].data == data[:32]


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        ({}, "request-invalid"),
        ({"inputs": []}, "request-invalid"),
        ({"inputs": [X, X]}, "request-invalid"),
        (x_with(name="z"), "request-invalid"),
        (x_with(datatype="FP64"), "input-type-wrong"),
        (x_with(datatype="BYTES"), "input-type-wrong"),
        (x_with(shape=[2]), "input-shape-wrong"),
        (x_with(shape=[]), "input-shape-wrong"),
        (x_with(shape=[0, 2]), "input-shape-wrong"),
        (x_with(shape=[1, 3]), "input-shape-wrong"),
        (x_with(shape=[-1, 2]), "input-shape-wrong"),
        (x_with(shape=[True, 2]), "request-invalid"),
        (x_with(shape=[2**40, 2**40]), "tensor-too-large"),
        (x_with(data=[1]), "tensor-data-incomplete"),
        (x_with(data=[1, "2"]), "input-type-wrong"),
        (x_with(data=[[1], [2]]), "input-shape-wrong"),
        (x_with(shape=[3, 2], data=[[1, 2, 3], [4, 5, 6]]), "input-shape-wrong"),
        (x_with(data=[1, 1e60]), "input-not-finite"),
        (x_with(data="12"), "request-invalid"),
        ({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32"}]}, "request-invalid"),
        (x_with(shape=[101, 2], data=[1] * 202), "too-many-inputs"),
        (x_with(parameters={"shared_memory_region": "a"}), "protocol-part-not-supported"),
        (x_with(parameters={"binary_data_size": 0}), "body-not-readable"),
        ({**x_with(), "parameters": {"sequence_id": 3}}, "protocol-part-not-supported"),
        ({**x_with(), "parameters": {"timeout": -3}}, "request-invalid"),
        ({**x_with(), "outputs": [{"name": "z"}]}, "unknown-output"),
        (
            {**x_with(), "outputs": [{"name": "y", "parameters": {"classification": "a"}}]},
            "request-invalid",
        ),
    ],
)
def test_v2_call_when_the_request_is_wrong(request_: dict[str, Any], rule: str) -> None:
    assert rule_of(request_) == rule


@pytest.mark.parametrize(
    ("request_", "binary", "rule"),
    [
        (in_binary(8), b"1234567", "body-not-readable"),
        (in_binary(8), b"123456789", "body-not-readable"),
        (in_binary(4), b"1234", "tensor-data-incomplete"),
        (in_binary(-8), b"12345678", "body-not-readable"),
        (in_binary(2**70), b"12345678", "body-not-readable"),
        (in_binary(8), struct.pack("<2f", float("nan"), 1), "input-not-finite"),
        (in_binary(8), struct.pack("<2f", float("inf"), 1), "input-not-finite"),
        (x_with(), b"1", "body-not-readable"),
    ],
)
def test_v2_call_when_binary_data_is_wrong(
    request_: dict[str, Any], binary: bytes, rule: str
) -> None:
    assert rule_of(request_, binary) == rule


@pytest.mark.parametrize("header", ["x", "-1", "1_0", "9" * 30, "1000", "²", ""])
def test_v2_call_when_the_length_of_the_json_is_wrong(header: str) -> None:
    with pytest.raises(UsageError, match="Inference-Header-Content-Length"):
        v2_call(b"{}", header, MODEL, LIMITS)


def test_v2_call_when_a_bool_is_another_byte() -> None:
    spec = TensorSpec(name="x", dtype="bool", shape=(None, 2))
    model = msgspec.structs.replace(MODEL, inputs=(spec,))
    call(in_binary(2, datatype="BOOL"), b"\0\1", model)
    assert rule_of(in_binary(2, datatype="BOOL"), b"\0\2", model) == "body-not-readable"


def texts_in(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def bytes_request(count: int, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "inputs", "shape": [count], "datatype": "BYTES", **more}]}


def test_v2_call_when_the_model_takes_texts() -> None:
    found = call(bytes_request(2, data=["a", "ä"]), model=TEXTS)
    assert [request.input for request in found.requests] == [TextInput("a"), TextInput("ä")]
    assert not found.requests[0].is_raw
    data = texts_in(b"a", "ä".encode())
    binary = call(bytes_request(2, parameters={"binary_data_size": len(data)}), data, TEXTS)
    assert binary.requests == found.requests


def test_v2_call_when_the_model_takes_files() -> None:
    data = texts_in(b"some file")
    request = bytes_request(1, parameters={"binary_data_size": len(data)})
    model = msgspec.structs.replace(TEXTS, accepts=("file",))
    assert call(request, data, model).requests[0].input == FileInput(b"some file")


@pytest.mark.parametrize(
    ("data", "count", "rule"),
    [
        (b"\1\0", 1, "body-not-readable"),
        (b"\xff\xff\xff\xff", 1, "body-not-readable"),
        (texts_in(b"a"), 2, "tensor-data-incomplete"),
        (texts_in(b"\xff"), 1, "body-not-readable"),
        (texts_in(b"a"), 2**40, "tensor-too-large"),
        (texts_in(b"a"), 101, "too-many-inputs"),
    ],
)
def test_v2_call_when_texts_are_broken(data: bytes, count: int, rule: str) -> None:
    request = bytes_request(count, parameters={"binary_data_size": len(data)})
    assert rule_of(request, data, TEXTS) == rule


def answer(*values: float, model: ServedModel = MODEL) -> Answer:
    tensor = WireTensor(
        "y", "float32", (len(values) // 3, 3), struct.pack(f"<{len(values)}f", *values)
    )
    return Answer(tensors=(tensor,), model=model, queue_s=0, compute_s=0, batch_samples=1)


def test_v2_response_when_it_is_json() -> None:
    body, length = v2_response(call({**x_with(), "id": "7"}), [answer(1, 2, float("nan"))])
    assert length is None
    assert msgspec.json.decode(body) == {
        "model_name": "m",
        "model_version": "7",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, None]}],
    }


def test_v2_response_when_a_request_was_computed_in_pieces() -> None:
    wish = {**x_with(), "parameters": {"binary_data_output": True}}
    body, length = v2_response(call(wish), [answer(1, 2, 3, 4, 5, 6), answer(7, 8, 9)])
    (output,) = msgspec.json.decode(body[:length])["outputs"]
    assert output == {
        "name": "y", "datatype": "FP32", "shape": [3, 3], "parameters": {"binary_data_size": 36},
    }  # fmt: skip
    assert struct.unpack("<9f", body[length:]) == (1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_v2_response_when_classes_are_asked_for() -> None:
    wish = {
        **x_with(),
        "outputs": [{"name": "y", "parameters": {"classification": 2, "binary_data": False}}],
    }
    body, _ = v2_response(call(wish), [answer(0.25, 3, 1.5)])
    (output,) = msgspec.json.decode(body)["outputs"]
    assert output["data"] == ["3.000000:1:b", "1.500000:2:c"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 2])


def test_v2_response_when_the_output_is_bool() -> None:
    wish = {**x_with(), "outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    tensor = WireTensor("y", "bool", (1, 3), b"\0\1\0")
    found = Answer(tensors=(tensor,), model=MODEL, queue_s=0, compute_s=0, batch_samples=1)
    body, _ = v2_response(call(wish), [found])
    assert msgspec.json.decode(body)["outputs"][0]["data"] == ["1.000000:1:b"]


def test_v2_call_when_classes_of_rows_are_asked_for() -> None:
    wish = {"name": "predictions", "parameters": {"classification": 2}}
    request = {**bytes_request(1, data=["a"]), "outputs": [wish]}
    assert rule_of(request, model=TEXTS) == "request-invalid"


def test_v2_call_when_the_shape_is_long() -> None:
    with pytest.raises(UsageError) as caught:
        call(x_with(shape=[1] * 100_000))
    assert len(caught.value.problem) < 200


def test_v2_response_when_predictions_are_rows() -> None:
    found = call(bytes_request(1, data=["a"]), model=TEXTS)
    rows = Answer(
        rows=({"text": "a", "next": "b"},), model=TEXTS, queue_s=0, compute_s=0, batch_samples=1
    )
    body, _ = v2_response(found, [rows])
    (output,) = msgspec.json.decode(body)["outputs"]
    assert output["name"] == "predictions"
    assert msgspec.json.decode(output["data"][0]) == {"text": "a", "next": "b"}


def test_model_metadata() -> None:
    assert model_metadata(MODEL).inputs == (V2TensorMetadata("x", "FP32", (-1, 2)),)
    assert model_metadata(TEXTS).inputs == (V2TensorMetadata("inputs", "BYTES", (-1,)),)
    assert model_metadata(TEXTS).outputs[0].name == "predictions"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.text(max_size=5), st.sampled_from([MODEL, TEXTS]))
def test_v2_call_when_bytes_are_anything(
    body: bytes, header: str | None, model: ServedModel
) -> None:
    _call_or_refused(body, header, model)


anything = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "inputs", "z"]),
        "shape": st.lists(st.integers(-2, 4) | st.integers(), max_size=3),
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "BF16"]),
    },
    optional={
        "data": st.lists(anything | st.lists(anything, max_size=3), max_size=4),
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "sequence_id"]), st.integers(0, 20) | anything
        ),
    },
)


outputs = st.fixed_dictionaries(
    {"name": st.sampled_from(["y", "predictions", "z"])},
    optional={
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data", "classification"]), st.integers(0, 5) | anything
        )
    },
)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(tensors, max_size=2),
    st.lists(outputs, max_size=2),
    st.binary(max_size=20),
    st.sampled_from([MODEL, TEXTS]),
)
def test_v2_call_when_tensors_are_anything(
    inputs: list[Any], wanted: list[Any], binary: bytes, model: ServedModel
) -> None:
    try:
        text = msgspec.json.encode({"inputs": inputs, "outputs": wanted})
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return
    _call_or_refused(text + binary, str(len(text)), model)


def _call_or_refused(body: bytes, header: str | None, model: ServedModel) -> None:
    """A request that can be sent to a replica, or an error with an id; nothing else."""
    try:
        found = v2_call(body, header, model, LIMITS)
    except FlatoutError as error:
        assert error.problem and error.fix
        return
    answers = []
    for request in found.requests:
        msgspec.msgpack.encode(request.input)
        if isinstance(request.input, TensorInput):
            (tensor,) = request.input.tensors
            assert len(tensor.data) == 4 * tensor.shape[0] * 2
        rows = Answer(rows=({"a": 1},), model=model, queue_s=0, compute_s=0, batch_samples=1)
        answers.append(answer(*range(3 * request.num_samples)) if request.is_raw else rows)
    answered, length = v2_response(found, answers)
    assert msgspec.json.decode(answered[:length])["model_name"] == model.name
