"""Bodies of `POST /predict`: what becomes of them, and what is refused before it costs anything."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import time
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import FlatoutError, UsageError
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.schema.serve_protocol import FileInput, TensorInput, TextInput, ValueInput, WireTensor
from flatout.serve.dispatcher import InferRequest
from flatout.serve.inputs import CallOptions, number_bytes, predict_requests, query_options
from flatout.serve.limits import ServeLimits, check_depth, decompressed, num_elements
from flatout.serve.uploaded_files import file_input, multipart_inputs, suffix_of

LIMITS = ServeLimits(
    body_bytes=1 << 20, tensor_bytes=1 << 20, num_inputs=100, image_pixels=10_000,
    file_bytes=1 << 20,
)  # fmt: skip


def model_with(*shape: int | None, dtype: str = "float32", **more: Any) -> ServedModel:
    spec = TensorSpec(name="x", dtype=dtype, shape=(None, *shape))
    return ServedModel(name="m", version="1", format="run", inputs=(spec,), max_samples=8, **more)


def read(body: bytes | object, model: ServedModel, kind: str = "application/json") -> Any:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return predict_requests(data, kind, CallOptions(), model, LIMITS)


def rule_of(body: bytes | object, model: ServedModel, kind: str = "application/json") -> str:
    with pytest.raises(UsageError) as caught:
        read(body, model, kind)
    return caught.value.rule


def tensor_of(requests: tuple[InferRequest, ...]) -> WireTensor:
    (request,) = requests
    assert isinstance(request.input, TensorInput)
    return request.input.tensors[0]


def value_of(request: InferRequest) -> Any:
    """What a replica gets."""
    sent = msgspec.msgpack.encode(request.input)
    return msgspec.msgpack.decode(sent, type=ValueInput).value


def test_predict_requests_when_numbers_are_nested() -> None:
    requests = read({"inputs": [[[1, 2.5]], [[3, 4]]]}, model_with(1, 2))
    tensor = tensor_of(requests)
    assert (tensor.dtype, tensor.shape) == ("float32", (2, 1, 2))
    assert struct.unpack("<4f", tensor.data) == (1.0, 2.5, 3.0, 4.0)
    assert requests[0].num_samples == 2


def test_predict_requests_when_dimensions_of_one_are_missing() -> None:
    assert tensor_of(read({"input": [[1, 2], [3, 4]]}, model_with(1, 2, 2))).shape == (1, 1, 2, 2)


def test_predict_requests_when_samples_are_numbers() -> None:
    assert tensor_of(read({"inputs": [1, 2, 3]}, model_with())).shape == (3,)


def test_predict_requests_when_there_are_more_samples_than_in_a_batch() -> None:
    requests = read({"inputs": [[n] for n in range(20)]}, model_with(1))
    assert [request.num_samples for request in requests] == [8, 8, 4]
    last = requests[-1].input
    assert isinstance(last, TensorInput)
    assert struct.unpack("<4f", last.tensors[0].data) == (16.0, 17.0, 18.0, 19.0)


def test_predict_requests_when_lengths_vary() -> None:
    requests = read({"inputs": [[1, 2], [3]]}, model_with(None, dtype="int64"))
    assert [tensor_of((request,)).shape for request in requests] == [(1, 2), (1, 1)]


def test_predict_requests_when_the_model_takes_several_tensors() -> None:
    model = ServedModel(
        name="m",
        version="1",
        format="onnx",
        inputs=(
            TensorSpec(name="a", dtype="float32", shape=(None, 2)),
            TensorSpec(name="b", dtype="bool", shape=(None,)),
        ),
        max_samples=8,
    )
    (request,) = read({"inputs": [{"a": [1, 2], "b": True}, {"b": False, "a": [3, 4]}]}, model)
    assert [tensor.shape for tensor in request.input.tensors] == [(2, 2), (2,)]
    assert request.input.tensors[1].data == b"\x01\x00"
    assert (
        rule_of({"inputs": [{"a": [1, 2], "b": True}, {"a": [1, 2]}]}, model) == "request-invalid"
    )


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"", "body-not-readable"),
        (b"{", "body-not-readable"),
        (b'{"input": NaN}', "body-not-readable"),
        (b'{"input": [Infinity, 1]}', "body-not-readable"),
        (b'{"input": "\xff"}', "body-not-readable"),
        (b"[1]", "request-invalid"),
        ({}, "request-invalid"),
        ({"input": [1, 2], "inputs": []}, "request-invalid"),
        ({"inputs": []}, "request-invalid"),
        ({"inputs": [[1, 2]], "colour": 1}, "request-invalid"),
        ({"inputs": [[1, 2]], "top": 0}, "request-invalid"),
        ({"inputs": [[1, 2]], "top": "3"}, "request-invalid"),
        ({"inputs": [[1, 2]], "timeout_s": 0}, "request-invalid"),
        ({"inputs": [[1, 2]] * 101}, "too-many-inputs"),
        ({"inputs": [[1, 2, 3]]}, "input-shape-wrong"),
        ({"inputs": [1]}, "input-shape-wrong"),
        ({"inputs": [[]]}, "input-shape-wrong"),
        ({"inputs": [[1, 2], [1]]}, "input-shape-wrong"),
        ({"inputs": [[[1], 2]]}, "input-shape-wrong"),
        ({"inputs": [[1, [2]]]}, "input-type-wrong"),
        ({"inputs": [[1, "2"]]}, "input-type-wrong"),
        ({"inputs": [[1, None]]}, "input-type-wrong"),
        ({"inputs": [[1, True]]}, "input-type-wrong"),
        ({"inputs": [[1, {}]]}, "input-type-wrong"),
        ({"inputs": [[1, 1e300]]}, "input-not-finite"),
        (b'{"inputs": [[1, ' + b"9" * 400 + b"]]}", "input-type-wrong"),
        (b'{"inputs": [[1, ' + b"9" * 5000 + b"]]}", "request-invalid"),
        (b'{"inputs": [[1, 1e999]]}', "request-invalid"),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json-too-deep"),
        (b'{"input": ' + b"[" * 100 + b"1" + b"]" * 100 + b"}", "json-too-deep"),
        ({"input": "a text"}, "input-kind-not-accepted"),
        ({"input": {"base64": "aGk="}}, "input-kind-not-accepted"),
        ({"input": {"a": 1}}, "input-kind-not-accepted"),
        ({"input": None}, "input-kind-not-accepted"),
        (b'{"input": "' + b"[" * 100 + b'"}', "input-kind-not-accepted"),
    ],
)  # fmt: skip
def test_predict_requests_when_the_body_is_wrong(body: bytes | object, rule: str) -> None:
    assert rule_of(body, model_with(2)) == rule


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", 1.5), ("uint8", 256), ("uint8", -1), ("bool", 1), ("int32", 2**40)],
)
def test_predict_requests_when_a_number_does_not_fit_the_dtype(dtype: str, value: object) -> None:
    assert rule_of({"inputs": [[value]]}, model_with(1, dtype=dtype)) == "input-type-wrong"


def test_predict_requests_when_one_text_is_long() -> None:
    # numpy would make each of the texts as long as the longest.
    body = {"inputs": [["a"] * 1000, ["b" * 500_000] + ["c"] * 999]}
    assert rule_of(body, model_with(1000)) == "input-type-wrong"


def test_predict_requests_when_the_model_takes_other_kinds() -> None:
    model = model_with(2, accepts=("tensors", "file", "text", "value"), has_decode=True)
    (text, file, value) = read(
        {"inputs": ["hello", {"base64": "aGk="}, {"age": [3, None]}], "top": 2, "timeout_s": 0.5},
        model,
    )
    assert text.input == TextInput("hello")
    assert file.input == FileInput(b"hi")
    assert value_of(value) == {"age": [3, None]}
    assert (text.top, text.deadline_s) == (2, 0.5)
    # Numbers too: `decode` may scale them.
    assert value_of(read({"input": [1, 2]}, model)[0]) == [1, 2]
    assert rule_of(b'{"input": 99999999999999999999}', model) == "request-invalid"
    plain = model_with(2, accepts=("tensors", "value"))
    assert tensor_of(read({"input": [1, 2]}, plain)).shape == (1, 2)
    assert rule_of({"input": {"a": 1}}, plain) == "input-kind-not-accepted"
    assert rule_of({"input": {"base64": "??"}}, model) == "body-not-readable"
    assert rule_of({"input": {"base64": 3}}, model) == "request-invalid"
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    assert rule_of({"input": {"a": deep}}, model) == "json-too-deep"


def test_predict_requests_when_the_body_is_one_file_or_text() -> None:
    model = model_with(2, accepts=("file", "text"))
    data = png(4, 4)
    # Pillow may make four bytes of each pixel.
    assert read(data, model, "image/png")[0].input == FileInput(data, ".png", 4 * 16)
    assert read(b"x", model, "application/octet-stream")[0].input == FileInput(b"x")
    assert read("ä".encode(), model, "text/plain; charset=utf-8")[0].input == TextInput("ä")
    assert rule_of(b"\xff", model, "text/plain") == "body-not-readable"
    assert rule_of(b"a=b", model, "application/x-www-form-urlencoded") == (
        "content-type-not-supported"
    )
    assert rule_of(b"x", model_with(2), "image/png") == "input-kind-not-accepted"


def form(*parts: tuple[str, bytes], end: bytes = b"--B--\r\n") -> bytes:
    pieces = [
        b"--B\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n"
        for head, data in parts
    ]
    return b"".join(pieces) + end


KIND = "multipart/form-data; boundary=B"


def test_multipart_inputs_when_names_are_paths() -> None:
    body = form(
        ('name="file"; filename="../../etc/passwd.png"', b"GIF89a..."),
        ('name="b"; filename="x.gif"', b"text"),
        ('name="c"', b"a text"),
    )
    found = multipart_inputs(form(('name="b"; filename="x.gif"', b"text")), KIND, LIMITS)
    assert found == [FileInput(b"text")]
    with pytest.raises(UsageError, match="GIF"):
        multipart_inputs(body, KIND, LIMITS)
    assert multipart_inputs(form(('name="c"', b"a text")), KIND, LIMITS) == [TextInput("a text")]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"--B\r\n", form(('name="a"; filename="a"', b"data"), end=b""), b"nonsense",
        b"--B\r\nbroken header\r\n\r\n", form(),
    ],
)  # fmt: skip
def test_multipart_inputs_when_the_body_is_broken(body: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        multipart_inputs(body, KIND, LIMITS)
    assert caught.value.rule in ("body-not-readable", "request-invalid")
    with pytest.raises(UsageError, match="multipart"):
        multipart_inputs(body, "multipart/form-data", LIMITS)


def png(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def npy(shape: tuple[int, ...], dtype: str = "float32") -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.zeros(shape, dtype))
    return file.getvalue()


def bomb_png(width: int, height: int) -> bytes:
    """A PNG that says it is that large, and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@pytest.mark.parametrize(
    ("data", "suffix", "content_bytes"),
    [
        (png(3, 3), ".png", 36), (npy((2, 2)), ".npy", 16),
        (gzip.compress(b"data", mtime=0), ".gz", 4),
        (gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0), ".gz", 2),
        (b"anything", "", 0),
    ],
)  # fmt: skip
def test_file_input_when_it_is_correct(data: bytes, suffix: str, content_bytes: int) -> None:
    assert file_input(data, LIMITS) == FileInput(data, suffix, content_bytes)


def test_file_input_when_gzip_has_many_members() -> None:
    data = gzip.compress(b"", mtime=0) * 100_000
    began_s = time.thread_time()
    assert file_input(data, LIMITS) == FileInput(data, ".gz")
    # Where each copied the rest of the file, it took minutes.
    assert time.thread_time() - began_s < 5


@pytest.mark.parametrize(
    ("magic", "suffix"),
    [(b"\xff\xd8\xff", ".jpg"), (b"BM", ".bmp"), (b"II*\x00", ".tiff"), (b"RIFF0000WEBP", ".webp")],
)
def test_suffix_of_images(magic: bytes, suffix: str) -> None:
    assert suffix_of(magic) == suffix


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "file-damaged"),
        (png(200, 200), "file-too-large"),
        (bomb_png(60_000, 60_000), "file-too-large"),
        (bomb_png(2**31 - 1, 2**31 - 1), "file-too-large"),
        (b"\x89PNG\r\n\x1a\n", "file-damaged"),
        (b"\xff\xd8\xff\xe0", "file-damaged"),
        (b"BMxxxx", "file-damaged"),
        (npy((2, 2))[:-1], "file-damaged"),
        (npy((2, 2)) + b"more", "file-damaged"),
        (npy((2, 2)).replace(b"(2, 2)", b"(9**9)"), "file-damaged"),
        (npy((2, 2)).replace(b"(2, 2),", b"(99999, 99999),"), "file-too-large"),
        (npy((2, 2)).replace(b"(2, 2)", b"(2, -2)"), "file-damaged"),
        (npy((2,), "object"), "file-damaged"),
        (npy((2**19,)), "file-too-large"),
        (b"\x93NUMPY\x01\x00\xff\xff", "file-damaged"),
        (b"\x93NUMPY\x01\x00\x06\x00(('[{\n", "file-damaged"),
        (gzip.compress(bytes(2 << 20), mtime=0), "file-too-large"),
        (gzip.compress(b"some data", mtime=0)[:-9], "file-damaged"),
        (gzip.compress(b"some data", mtime=0) + b"more", "file-damaged"),
    ],
)  # fmt: skip
def test_file_input_when_it_is_hostile(data: bytes, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        file_input(data, LIMITS)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("body", "encoding", "rule"),
    [
        (gzip.compress(bytes(2 << 20), mtime=0), "gzip", "body-too-large"),
        (zlib.compress(bytes(2 << 20)), "deflate", "body-too-large"),
        (gzip.compress(b"data", mtime=0)[:-1], "gzip", "body-not-readable"),
        (gzip.compress(b"data", mtime=0) + b"more", "gzip", "body-not-readable"),
        (b"data", "gzip", "body-not-readable"),
        (b"data", "br", "content-type-not-supported"),
        (gzip.compress(b"data", mtime=0), "gzip, gzip", "content-type-not-supported"),
    ],
)
def test_decompressed_when_the_body_is_hostile(body: bytes, encoding: str, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        decompressed(body, encoding, LIMITS)
    assert caught.value.rule == rule


def test_decompressed_when_the_body_is_correct() -> None:
    assert decompressed(gzip.compress(b"data", mtime=0), "GZIP", LIMITS) == b"data"
    assert decompressed(zlib.compress(b"data"), "deflate", LIMITS) == b"data"
    assert decompressed(b"data", "identity", LIMITS) == b"data"


@pytest.mark.parametrize(
    ("shape", "rule"),
    [((-1,), "input-shape-wrong"), ((2**62, 2**62, 2**62), "tensor-too-large"),
     ((2**20, 1), "tensor-too-large"), ((1000,) * 1_000_000, "tensor-too-large")],
)  # fmt: skip
def test_num_elements_when_the_shape_is_hostile(shape: tuple[int, ...], rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        num_elements(shape, 4, LIMITS)
    assert caught.value.rule == rule


def test_num_elements() -> None:
    assert num_elements((2, 3, 4), 4, LIMITS) == 24
    assert num_elements((0, 3), 4, LIMITS) == 0


def test_query_options() -> None:
    assert query_options({"top": "3", "timeout_s": "1.5"}) == CallOptions(top=3, timeout_s=1.5)
    assert query_options({"stream": "False"}) == CallOptions()
    wrong = (
        {"top": "x"}, {"tops": "1"}, {"timeout_s": "nan"}, {"top": "-1"}, {"stream": "maybe"},
    )  # fmt: skip
    for query in wrong:
        with pytest.raises(UsageError, match=r"`|parameter|timeout"):
            query_options(query)


FUZZED = (
    model_with(2),
    model_with(None, dtype="int64", accepts=("tensors", "file", "text", "value")),
    model_with(2, accepts=("tensors", "file", "value"), has_decode=True),
    model_with(2, dtype="bool", accepts=("file",)),
)
KINDS = ("application/json", KIND, "application/octet-stream", "text/plain", "multipart/form-data")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)),
    st.sampled_from(["float32", "float64"]),
)
def test_number_bytes_are_those_of_numpy(numbers: list[Any], dtype: str) -> None:
    import numpy as np

    spec = TensorSpec(name="x", dtype=dtype, shape=(None,))
    with np.errstate(over="ignore"):
        array = np.array(numbers, dtype)
    if np.isfinite(array).all():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        assert number_bytes(numbers, spec, LIMITS) == little.tobytes()
    else:
        with pytest.raises(UsageError):
            number_bytes(numbers, spec, LIMITS)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(KINDS), st.sampled_from(FUZZED))
def test_predict_requests_when_bytes_are_anything(
    body: bytes, kind: str, model: ServedModel
) -> None:
    _read_or_refused(body, kind, model)


@settings(max_examples=300, deadline=None)
@given(st.lists(json_values, max_size=3), st.sampled_from(FUZZED))
def test_predict_requests_when_json_is_anything(values: list[Any], model: ServedModel) -> None:
    try:
        body = msgspec.json.encode({"inputs": values})
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return
    _read_or_refused(body, "application/json", model)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        [
            png(3, 3),
            npy((2, 2)),
            gzip.compress(b"data", mtime=0),
            bomb_png(3, 3),
            form(("name=a", b"x")),
        ]
    ),
    st.integers(0, 200),
    st.binary(max_size=4),
)
def test_file_input_when_a_file_is_changed(data: bytes, position: int, change: bytes) -> None:
    changed = data[:position] + change + data[position + len(change) :]
    for kind in ("application/octet-stream", KIND):
        _read_or_refused(changed, kind, FUZZED[1])
    _read_or_refused(
        b'{"input": {"base64": "' + base64.b64encode(changed) + b'"}}',
        "application/json",
        FUZZED[1],
    )


def _read_or_refused(body: bytes, kind: str, model: ServedModel) -> None:
    """A request that can be sent to a replica, or an error with an id; nothing else."""
    try:
        requests = predict_requests(body, kind, CallOptions(), model, LIMITS)
    except FlatoutError as error:
        assert error.problem and error.fix
        return
    assert requests
    for request in requests:
        msgspec.msgpack.encode(request.input)
        if isinstance(request.input, TensorInput):
            for tensor in request.input.tensors:
                assert tensor.shape[0] == request.num_samples >= 1


def test_check_depth_when_it_is_at_the_limit() -> None:
    for text in (b"1", b'"[[[["', b'"]\\"[{"', b'"\\\\","[["'):
        value = b"[" * LIMITS.json_depth + text + b"]" * LIMITS.json_depth
        msgspec.json.decode(value)
        check_depth(value, LIMITS)
        with pytest.raises(UsageError, match="deep"):
            check_depth(b'{"a":' + value + b"}", LIMITS)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_check_depth_when_json_is_anything(value: Any) -> None:
    try:
        body = msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return

    def depth(one: Any) -> int:
        members = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        return 0 if members is None else 1 + max(map(depth, members), default=0)

    limits = ServeLimits(json_depth=depth(value))
    check_depth(body, limits)
    if limits.json_depth:
        with pytest.raises(UsageError, match="deep"):
            check_depth(body, ServeLimits(json_depth=limits.json_depth - 1))
