"""Numbers that a client sends as arrays: right ones unchanged, wrong ones refused."""

from __future__ import annotations

from typing import Any

import pytest

numpy = pytest.importorskip("numpy")

from flatout.engine.predict.array_rows import array_rows  # noqa: E402
from flatout.engine.serve.input_arrays import arrays_of, wire_tensor  # noqa: E402
from flatout.errors import UsageError  # noqa: E402
from flatout.schema.serve_model import TensorSpec  # noqa: E402
from flatout.schema.serve_protocol import (  # noqa: E402
    TensorInput,
    TextInput,
    ValueInput,
    WireTensor,
)

PICTURE = (TensorSpec(name="picture", dtype="float32", shape=(None, 2, 2)),)
PAIR = (
    TensorSpec(name="a", dtype="int64", shape=(None,)),
    TensorSpec(name="b", dtype="float32", shape=(None, 2)),
)


@pytest.mark.parametrize(
    "value", [[[1, 2], [3, 4]], [[[1, 2], [3, 4]]], {"picture": [[1.0, 2], [3, 4]]}]
)
def test_nested_lists_are_one_sample_or_several(value: Any) -> None:
    [array] = arrays_of(ValueInput(value), PICTURE)
    assert array.dtype == "float32" and array.tolist() == [[[1, 2], [3, 4]]]


def test_several_tensors_come_by_name() -> None:
    a, b = arrays_of(ValueInput({"b": [[1, 2]], "a": [7]}), PAIR)
    assert (a.tolist(), b.tolist()) == ([7], [[1, 2]])
    given = TensorInput(tuple(wire_tensor(name, part) for name, part in (("b", b), ("a", a))))
    assert [part.tolist() for part in arrays_of(given, PAIR)] == [[7], [[1, 2]]]


def test_a_tensor_comes_back_as_it_was() -> None:
    array = numpy.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    sent = wire_tensor("x", array)
    assert (sent.dtype, sent.shape, sent.data[:4]) == ("int32", (3, 2), bytes(4))
    spec = (TensorSpec(name="y", dtype="int64", shape=(None, 2)),)
    assert arrays_of(TensorInput((sent,)), spec)[0].tolist() == array.tolist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ValueInput("text"), "not a list of numbers"),
        (ValueInput([[1, 2], [3]]), "not of the same length"),
        (ValueInput([["a", "b"], ["c", "d"]]), "other than numbers"),
        (ValueInput([1, 2]), "takes [n, 2, 2]"),
        (ValueInput([[1, 2, 3], [4, 5, 6]]), "takes [n, 2, 2]"),
        (ValueInput([[1, 2], [3, 1e300]]), "float32 cannot hold"),
        (ValueInput({"image": 1}), "takes picture"),
        (ValueInput([]), "number of samples"),
        (TextInput("text"), "takes numbers"),
        (TensorInput((WireTensor("p", "float32", (1, 2, 2), b"123"),)), "has 3 bytes"),
        (TensorInput((WireTensor("p", "float32", (-1, 2, 2), b""),)), "shape"),
        (TensorInput((WireTensor("p", "object", (1, 2, 2), b""),)), "unknown dtype"),
        (TensorInput((WireTensor("p", "uint8", (1, 2, 2), b"1234"),)), "is uint8"),
        (TensorInput((WireTensor("p", "float32", (0, 2, 2), b""),)), "number of samples"),
        (TensorInput(()), "takes picture"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        arrays_of(given, PICTURE)


def test_whole_numbers_that_change_are_refused() -> None:
    spec = (TensorSpec(name="x", dtype="uint8", shape=(None,)),)
    assert arrays_of(ValueInput([3, 200]), spec)[0].dtype == "uint8"
    with pytest.raises(ValueError, match="uint8 cannot hold"):
        arrays_of(ValueInput([3, 300]), spec)


def test_rows_name_the_likeliest_classes() -> None:
    scores = numpy.float32([[0.1, 0.7, 0.2]])
    [row] = array_rows({"prediction": scores}, 1, ["a", "b", "c"], 2)
    assert list(row) == ["label", "probability", "label_2", "probability_2"]
    assert (row["label"], row["label_2"]) == ("b", "c")
    assert array_rows({"prediction": numpy.int64([2])}, 1, ["a", "b", "c"], 1) == [{"label": "c"}]
    two = {"x": numpy.float32([[1.5]]), "y": numpy.float32([[1, 2]])}
    assert array_rows(two, 1, None, 1) == [{"x": 1.5, "y": [1.0, 2.0]}]


def test_a_class_without_a_name_is_not_another_one() -> None:
    with pytest.raises(UsageError) as error:
        array_rows({"prediction": numpy.int64([-1])}, 1, ["a", "b"], 1)
    assert error.value.rule == "bad-prediction"
