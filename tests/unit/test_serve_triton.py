"""`tritonclient.http` against the application, as Triton's users call it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.linear_dispatcher import MODEL, WEIGHTS, LinearDispatcher, serving

from flatout.serve.application import ApplicationOptions
from flatout.serve.token_hash import TokenHash

triton: Any = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of a server with the linear model."""
    with serving(LinearDispatcher()) as address:
        found = triton.InferenceServerClient(address)
        yield found
        found.close()


def inputs_of(array: Any, *, binary_data: bool) -> list[Any]:
    found = triton.InferInput("x", list(array.shape), "FP32")
    found.set_data_from_numpy(array, binary_data=binary_data)
    return [found]


def samples(count: int) -> Any:
    import numpy as np

    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def test_client_when_it_asks_about_server_and_model(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("linear") and client.is_model_ready("linear", "1")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "flatout"
    metadata = client.get_model_metadata("linear", "1")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


@pytest.mark.parametrize("in_binary", [True, False])
@pytest.mark.parametrize("out_binary", [True, False, None])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer(
    client: Any, in_binary: bool, out_binary: bool | None, compression: str | None
) -> None:
    array = samples(3)
    wanted = None
    if out_binary is not None:
        wanted = [triton.InferRequestedOutput("logits", binary_data=out_binary)]
    result = client.infer(
        "linear",
        inputs_of(array, binary_data=in_binary),
        outputs=wanted,
        request_id="a1",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
        timeout=1_000_000,
        priority=1,
    )
    assert (result.as_numpy("logits") == array @ WEIGHTS).all()
    assert result.get_response()["id"] == "a1"


def test_infer_when_there_are_more_samples_than_in_a_batch(client: Any) -> None:
    array = samples(50)
    result = client.infer("linear", inputs_of(array, binary_data=True))
    assert (result.as_numpy("logits") == array @ WEIGHTS).all()


def test_infer_when_classes_are_asked_for(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("logits", class_count=2)]
    result = client.infer("linear", inputs_of(samples(1), binary_data=True), outputs=wanted)
    assert result.as_numpy("logits").tolist() == [[b"24.000000:2:high", b"18.000000:1:middle"]]


def test_infer_when_many_are_in_flight(client: Any) -> None:
    calls = [
        (n, client.async_infer("linear", inputs_of(samples(n), binary_data=True)))
        for n in range(1, 9)
    ]
    for n, call in calls:
        assert (call.get_result().as_numpy("logits") == samples(n) @ WEIGHTS).all()


def test_infer_when_the_model_takes_texts() -> None:
    import numpy as np

    model = msgspec.structs.replace(MODEL, inputs=(), outputs=(), accepts=("text",))
    for binary_data in (True, False):
        with serving(LinearDispatcher(model)) as address:
            client = triton.InferenceServerClient(address)
            texts = triton.InferInput("inputs", [2], "BYTES")
            array = np.array(["a", "ä"], dtype=np.object_)
            texts.set_data_from_numpy(array, binary_data=binary_data)
            result = client.infer("linear", [texts])
            found = [msgspec.json.decode(row) for row in result.as_numpy("predictions")]
            client.close()
        assert [row["fields"] for row in found] == ["TextInput(text='a')", "TextInput(text='ä')"]


def test_infer_when_it_is_refused(client: Any) -> None:
    import numpy as np
    from tritonclient.utils import InferenceServerException

    array = np.zeros((1, 5), np.float32)
    with pytest.raises(InferenceServerException, match=r"\[422\] `x` has the shape \[1, 5\]"):
        client.infer("linear", inputs_of(array, binary_data=True))
    with pytest.raises(InferenceServerException, match=r"\[404\]"):
        client.infer("other", inputs_of(array, binary_data=True))


def test_client_when_a_token_is_needed() -> None:
    from tritonclient.utils import InferenceServerException

    with serving(LinearDispatcher(), ApplicationOptions(token=TokenHash.of("secret"))) as address:
        client = triton.InferenceServerClient(address)
        with pytest.raises(InferenceServerException, match=r"\[401\] the request has no token"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers={"Authorization": "Bearer secret"})
        client.close()
