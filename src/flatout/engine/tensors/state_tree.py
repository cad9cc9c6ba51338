"""Any state a training has, as tensors by name and a tree of plain JSON: nothing is pickled.

A tree holds None, bool, int, float, str and lists as JSON has them. What JSON has not is a dict
with one key that says what it is: {"dict": [[key, value], ...]}, {"counter": ...} likewise
(MultiStepLR has one), {"tuple": [...]}, {"float": "nan"}, {"array": tensor} for NumPy, and
{"tensor": name, "stride": [...]}, around which {"complex": ...} and {"expanded": ...,
"shape": [...]} make what safetensors files do not have. Two tensors that are the same memory get
the same name, so that ties survive.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flatout.engine.tensors.host_copies import Pair, empty_on_host, fill_on_host
from flatout.engine.tensors.safetensors_file import DTYPES
from flatout.errors import RunFailed, UsageError

Tree = Any

_COMPLEX = (torch.complex64, torch.complex128)


# What a safetensors file holds.
@dataclass
class Packed:
    """A state taken apart: a JSON tree, and its tensors as contiguous copies on the CPU."""

    tree: Tree = None
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def pack(state: Any, *, is_copied: bool = True) -> Packed:
    """Takes a state apart, copying its tensors; the state may change afterwards.

    Args:
        state: nested dicts, lists and tuples of tensors, arrays, numbers, texts and None.
        is_copied: False takes the tensors as they are: to find out whether it can be stored.

    Raises:
        UsageError: state-cannot-be-stored, with the path to what cannot.
    """
    packed = Packed()
    packer = _Packer(packed.tensors, is_copied)
    packed.tree = packer.tree(state, "")
    fill_on_host(packer.copies)
    return packed


class _Packer:
    """Takes a state apart.

    copies: tensors of the result that are still to be filled, each with what belongs there.
    """

    def __init__(self, tensors: dict[str, Tensor], is_copied: bool) -> None:
        self.copies: list[Pair] = []
        self._tensors = tensors
        self._is_copied = is_copied
        self._name_by_memory: dict[tuple[Any, ...], str] = {}
        self._arrays: list[Tensor] = []

    def tree(self, value: Any, path: str) -> Tree:
        if value is None or isinstance(value, bool | str):
            return value
        if type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, dict):
            kind = "counter" if isinstance(value, Counter) else "dict"
            pairs = [
                [self.tree(key, f"{path}.key"), self.tree(item, _join(path, key))]
                for key, item in value.items()
            ]
            return {kind: pairs}
        if type(value) is list:
            return [self.tree(item, _join(path, index)) for index, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.tree(item, _join(path, i)) for i, item in enumerate(value)]}
        return self._foreign(value, path)

    def _tensor(self, tensor: Tensor, path: str) -> Tree:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise _cannot_store(path, f"a {tensor.layout} tensor", "a dense one")
        if is_expanded(tensor):
            # Each element of the memory stands for several.
            inner = self._tensor(compact(tensor), path)
            return {"expanded": inner, "shape": list(tensor.shape)}
        if tensor.dtype.is_complex:
            if tensor.dtype not in _COMPLEX:
                raise _cannot_store(path, f"a tensor of {tensor.dtype}", "one of complex64")
            return {"complex": self._tensor(torch.view_as_real(tensor.resolve_conj()), path)}
        if tensor.dtype not in DTYPES:
            raise _cannot_store(path, f"a tensor of {tensor.dtype}", "one of a whole-byte type")
        memory = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        known = self._name_by_memory.get(memory) if tensor.numel() else None
        name = known or self._free_name(path or "tensor")
        if known is None:
            self._name_by_memory[memory] = name
            self._tensors[name] = self._copy_of(tensor) if self._is_copied else tensor
        stride = None if tensor.is_contiguous() else list(tensor.stride())
        return {"tensor": name} if stride is None else {"tensor": name, "stride": stride}

    def _copy_of(self, tensor: Tensor) -> Tensor:
        # Filled together in the end: from a GPU, many small ones travel as one.
        copy = empty_on_host(tensor)
        self.copies.append((copy, tensor))
        return copy

    def _free_name(self, name: str) -> str:
        """Makes a path a unique name: {"a.b": 1} and {"a": {"b": 1}} have the same path."""
        while name in self._tensors or name == "__metadata__":
            name += "'"
        return name

    def _foreign(self, value: Any, path: str) -> Tree:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return {"array": self._tensor(self._array(value, path), path)}
        if numpy is not None and isinstance(value, numpy.generic):
            plain = value.item()
            if not isinstance(plain, numpy.generic):
                return self.tree(plain, path)
        # Enums and named tuples: their plain form.
        if isinstance(value, int | float):
            return self.tree(int(value) if isinstance(value, int) else float(value), path)
        if isinstance(value, list | tuple):
            return self.tree(list(value) if isinstance(value, list) else tuple(value), path)
        raise _cannot_store(path, f"a {type(value).__qualname__}", "tensors, numbers and strings")

    def _array(self, array: Any, path: str) -> Tensor:
        try:
            tensor = torch.from_numpy(array.copy())
        except (TypeError, ValueError) as error:
            raise _cannot_store(path, f"an array of {array.dtype}", "one of numbers") from error
        # Tensors are identified by their memory, so it must not be reused for the next array.
        self._arrays.append(tensor)
        return tensor


def is_expanded(tensor: Tensor) -> bool:
    """Whether it is larger than its memory, as torch's `expand` makes it."""
    return bool(tensor.numel()) and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def compact(tensor: Tensor) -> Tensor:
    """The part of an expanded tensor that is in memory; any other as it is."""
    if not is_expanded(tensor):
        return tensor
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _cannot_store(path: str, what: str, instead: str) -> UsageError:
    return UsageError(
        "state-cannot-be-stored",
        f"`{path}` is {what}; it cannot be stored in a checkpoint.",
        because="checkpoints hold tensors and plain JSON, so that loading one never runs code",
        fix=f"make its state_dict() return {instead}",
    )


# The parts of a training's state that are as large as the model.
LARGE_PARTS = ("model", "optimizer", "average")


def unpack(tree: Tree, tensors: dict[str, Tensor], *, is_mapped: bool = False) -> Any:
    """Rebuilds a state: shared tensors stay shared, and strides are restored.

    Args:
        tree: what `pack` has made of it. tensors: by name.
        is_mapped: its large parts stay in the file and are read only when they are copied.
    """
    try:
        own = _Stored(tensors)
        if not is_mapped:
            return _unpacked(tree, own)
        mapped = _Stored(tensors, is_mapped=True)
        return {
            key: _unpacked(item, mapped if key in LARGE_PARTS else own)
            for key, item in tree["dict"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(
            "damaged-file",
            "a checkpoint's description does not fit its tensors.",
            because=repr(error),
            fix="remove that checkpoint's folder; the previous one is used then",
        ) from error


class _Stored:
    """Tensors of a file, each loaded once, however often it is referenced.

    Args:
        tensors: by name; the library gives the file's memory itself.
        is_mapped: they are left there; else copied, so that the file is free to be deleted.
    """

    def __init__(self, tensors: dict[str, Tensor], *, is_mapped: bool = False) -> None:
        self._tensors = tensors
        self._is_mapped = is_mapped
        self._taken: dict[str, Tensor] = {}

    def take(self, name: str, stride: list[int] | None) -> Tensor:
        """The tensor of that name, with these strides."""
        if name not in self._taken:
            self._taken[name] = self._with_stride(self._tensors[name], stride)
        return self._taken[name]

    def _with_stride(self, tensor: Tensor, stride: list[int] | None) -> Tensor:
        if stride is None:
            return tensor if self._is_mapped else tensor.clone()
        shaped = torch.empty_strided(tuple(tensor.shape), tuple(stride), dtype=tensor.dtype)
        return shaped.copy_(tensor)


def _unpacked(tree: Tree, stored: _Stored) -> Any:
    if isinstance(tree, list):
        return [_unpacked(item, stored) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "dict" in tree:
        return {_unpacked(key, stored): _unpacked(item, stored) for key, item in tree["dict"]}
    if "counter" in tree:
        return Counter(_unpacked({"dict": tree["counter"]}, stored))
    if "tuple" in tree:
        return tuple(_unpacked(item, stored) for item in tree["tuple"])
    if "float" in tree:
        return float(tree["float"])
    if "array" in tree:
        return _unpacked(tree["array"], stored).numpy()
    if "expanded" in tree:
        return _unpacked(tree["expanded"], stored).expand(tree["shape"])
    if "complex" in tree:
        return torch.view_as_complex(_unpacked(tree["complex"], stored))
    return stored.take(tree["tensor"], tree.get("stride"))


def copied(state: Any) -> Any:
    """Nested dicts, lists and tuples with a copy of each tensor in them."""
    if isinstance(state, Tensor):
        return state.clone()
    if type(state) is dict:
        return {key: copied(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(copied(value) for value in state)
    return state
