"""Messages between ranks as bytes: nothing is pickled, so reading them never runs code.

A message is a JSON tree and its tensors, as in a checkpoint (state_tree.py). Tensors are read as
copies on the CPU, because other ranks cannot use a rank's device.

    8 bytes   length of the JSON text
    JSON      the tree
    the rest  its tensors, as a safetensors file
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import safetensors.torch

from flatout.engine.tensors.safetensors_file import tensors_as_bytes
from flatout.engine.tensors.state_tree import pack, unpack

_LENGTH_BYTES = 8


def written(value: Any, kind: Any = None) -> bytes:
    """A value as bytes.

    Args:
        value: nested dicts, lists and tuples of tensors, arrays, numbers, texts and None; structs
            and data classes too, where their kind is given.
        kind: the type that `read` is to make of it; None for a value without any of ours in it.

    Raises:
        UsageError: state-cannot-be-stored.
    """
    packed = pack(value if kind is None else msgspec.to_builtins(value))
    tree = json.dumps(packed.tree, separators=(",", ":")).encode()
    length = len(tree).to_bytes(_LENGTH_BYTES, "little")
    return length + tree + tensors_as_bytes(packed.tensors)


def read(message: bytes, kind: Any = None) -> Any:
    """The value that `written` was given; kind: as there."""
    begin = _LENGTH_BYTES
    end = begin + int.from_bytes(message[:begin], "little")
    value = unpack(json.loads(message[begin:end]), safetensors.torch.load(message[end:]))
    return value if kind is None else msgspec.convert(value, kind)
