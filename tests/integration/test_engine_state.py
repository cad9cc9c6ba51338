"""Any state survives the way to the disk and back, or is refused with the path to what cannot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flatout.engine.tensors import host_copies
from flatout.engine.tensors.state_tree import pack, unpack
from flatout.engine.training.checkpoints import read_checkpoint, write_checkpoint
from flatout.errors import RunFailed, UsageError
from flatout.system.store.run_folder import RunFolder

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype and shape: empty ones, numbers, transposed, with gaps, channels_last."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    seed = draw(st.integers(0, 99))
    dice = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 9, shape, generator=dice).to(torch.float32)
    tensor = numbers.to(dtype)
    view = draw(st.sampled_from(("plain", "transposed", "gaps", "channels_last", "parameter")))
    if view == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if view == "gaps" and tensor.dim() and tensor.itemsize > 1:
        return tensor[..., ::2]
    if view == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if view == "parameter" and dtype.is_floating_point:
        return torch.nn.Parameter(tensor)
    return tensor


arrays = st.builds(
    lambda kind, shape: np.arange(math.prod(shape)).astype(kind).reshape(shape),
    st.sampled_from(("?", "u1", "i8", "u4", "f4", "f8")),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
plain = st.none() | st.booleans() | st.floats() | st.text() | st.integers(-(10**400), 10**400)
keys = st.text(max_size=4) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers())
leaves = plain | tensors() | arrays | st.dictionaries(st.text(), st.integers()).map(Counter)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=8,
)


def is_same(one: Any, other: Any) -> bool:
    """Equal in type, value, dtype and strides, NaN included."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and (one.stride() == other.stride() or one.is_contiguous())
            and bytes_of(one) == bytes_of(other)
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            is_same(a, b) and is_same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other or (one != one and other != other))


def bytes_of(tensor: Tensor) -> bytes:
    # A tensor without or with a single element may have strides that no view as bytes can have.
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return bytes(copy.view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


@quick
@given(state=states)
def test_state_comes_back_as_it_was(state: Any) -> None:
    packed = pack(state)
    assert is_same(state, unpack(packed.tree, packed.tensors))
    assert all(tensor.is_contiguous() for tensor in packed.tensors.values())


@quick
@given(state=states)
def test_state_comes_back_when_written_as_checkpoint(state: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    state = {"state": state, "generator": torch.get_rng_state()}
    write_checkpoint(folder, 7, pack(state))
    checkpoint, damaged = read_checkpoint(folder)
    assert checkpoint is not None and not damaged
    assert checkpoint.step == 7 and is_same(state, checkpoint.state)


def test_pack_when_the_state_changes_afterwards() -> None:
    weights = torch.zeros(3)
    packed = pack({"weights": weights})
    weights.add_(1)
    assert packed.tensors["weights"].tolist() == [0, 0, 0]


def test_ties_come_back_as_one_tensor() -> None:
    shared = torch.randn(4, 4)
    packed = pack({"in": shared, "out": [shared, shared.t(), shared[0]]})
    assert len(packed.tensors) == 3
    back = unpack(packed.tree, packed.tensors)
    assert back["in"] is back["out"][0]
    assert torch.equal(back["out"][1], shared.t())


def test_strides_come_back_when_channels_last(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    write_checkpoint(RunFolder(tmp_path), 1, pack({"image": image}))
    checkpoint, _ = read_checkpoint(RunFolder(tmp_path))
    assert checkpoint is not None
    assert checkpoint.state["image"].stride() == image.stride()
    assert torch.equal(checkpoint.state["image"], image)


def test_arrays_of_one_shape_are_not_taken_for_one() -> None:
    # The generators of NumPy for the model and for a stream are two such arrays.
    state = {"one": np.full(624, 1, np.uint32), "other": np.full(624, 2, np.uint32)}
    packed = pack(state)
    assert is_same(state, unpack(packed.tree, packed.tensors))


def test_names_of_tensors_are_not_mixed_up() -> None:
    keys = ("a.b", 0, "0", "", "tensor", "__metadata__")
    state = {key: torch.tensor(number) for number, key in enumerate(keys)}
    state["a"] = {"b": torch.tensor(7)}
    packed = pack(state)
    assert is_same(state, unpack(packed.tree, packed.tensors))


def test_numpy_numbers_come_back_as_plain_ones() -> None:
    packed = pack({"best": np.float32(0.5), "count": np.int64(3), "is_on": np.bool_(True)})
    assert unpack(packed.tree, {}) == {"best": 0.5, "count": 3, "is_on": True}


class Custom:
    pass


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: {"a": [1, lambda: 2]}, "a.1"),
        (lambda: {"a": {"b": Custom()}}, "a.b"),
        (lambda: {"a": torch.zeros(2, dtype=torch.complex32)}, "a"),
        (lambda: (torch.zeros(2).to_sparse(),), "0"),
        (lambda: {"a": {1, 2}}, "a"),
        (lambda: {"a": torch.zeros(2, device="meta")}, "a"),
        (lambda: {"a": np.array(["x"])}, "a"),
        (lambda: {"a": np.zeros(2, np.longdouble)}, "a"),
        (lambda: {"a": torch.empty(2, dtype=torch.bits8)}, "a"),
    ],
)
def test_state_is_refused_with_its_path_when_it_cannot_be_stored(
    make: Callable[[], Any], path: str
) -> None:
    with pytest.raises(UsageError) as caught:
        pack(make(), is_copied=False)
    assert caught.value.rule == "state-cannot-be-stored"
    assert caught.value.problem.startswith(f"`{path}` is ")


def test_unpack_when_a_tensor_is_missing() -> None:
    packed = pack({"weights": torch.zeros(3)})
    with pytest.raises(RunFailed) as caught:
        unpack(packed.tree, {})
    assert caught.value.rule == "damaged-file"


class NoEvent:
    """As one of a GPU's that has come to pass."""

    def record(self) -> None:
        """Nothing is waited for."""

    def synchronize(self) -> None:
        """Nothing is waited for."""


@pytest.mark.parametrize("sizes", [[1], [7, 1], [8], [9], [3, 0, 4, 1, 2], [41, 2, 16, 5, 1]])
def test_what_goes_through_pinned_memory_arrives_whole(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    filled: list[int] = []

    def staging(num_bytes: int, tensor: Tensor) -> tuple[Tensor, NoEvent]:
        filled.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8), NoEvent()

    monkeypatch.setattr(host_copies, "_BUFFER_BYTES", 8 * 4)
    monkeypatch.setattr(host_copies, "_staging", staging)
    tensors = [torch.randn(size) for size in sizes] + [
        torch.tensor(3), torch.randn(3, 5).t(), torch.randn(2, 3, 4, 4).to(
            memory_format=torch.channels_last
        ), torch.tensor([True, False]), torch.randn(5).bfloat16(),
        torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, 4)[:, 1],
    ]  # fmt: skip
    pairs = [(host_copies.empty_on_host(tensor), tensor) for tensor in tensors]
    host_copies.through_pinned(pairs)
    for copy, tensor in pairs:
        assert torch.equal(copy, tensor) and copy.is_contiguous()
    # However much there is, two buffers take turns.
    assert filled == [32, 32]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4, dtype=torch.complex64),
        torch.randn(3, dtype=torch.complex128).conj(),
        torch.randn(3, 1).expand(3, 5),
        torch.randn(1, 4).expand(2, 4).t(),
        torch.randn(2, 1, dtype=torch.complex64).expand(2, 3),
    ],
)
def test_complex_and_expanded_tensors_come_back(tensor: Tensor) -> None:
    packed = pack({"a": tensor})
    again = unpack(packed.tree, packed.tensors)["a"]
    assert again.dtype == tensor.dtype and torch.equal(again, tensor)
    assert packed.num_bytes <= tensor.untyped_storage().nbytes()
