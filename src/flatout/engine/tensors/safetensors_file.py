"""Tensors to a safetensors file: whole, synced, and hashed on the way.

Reading is the library's. Writing is done here, because its writer copies every tensor while no
other Python code can run (training continues during a save), leaves a temporary file when killed,
and needs NumPy. The format is an 8-byte little-endian length, a JSON header, the bytes.
Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from flatout.system import atomic_files

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
# In the metadata of kept weights: SHA-256 of the whole file, itself read as zeros.
SEAL = "flatout_sha256"
_NO_SEAL = "0" * 64


def write_tensors(
    tensors: dict[str, Tensor], metadata: dict[str, str], path_of: Callable[[str], Path]
) -> tuple[int, str]:
    """Writes a safetensors file atomically; one with metadata gets a checksum into them.

    Args:
        tensors: by name; those that are not contiguous or not on the CPU are copied one by one.
        metadata: texts for the header.
        path_of: gives the file's final path from its SHA-256.

    Returns:
        Its size in bytes and its SHA-256, without a checksum in the metadata.
    """
    part = atomic_files.part_path(path_of("tensors"))
    digest = hashlib.sha256()
    with atomic_files.mapped_os_errors(part):
        try:
            with open(part, "wb") as file:
                sealed = {**metadata, SEAL: _NO_SEAL} if metadata else {}
                seal_place = None
                for piece in _pieces(tensors, sealed):
                    if sealed and seal_place is None:
                        # The header comes first, and the checksum is known only at the end.
                        seal_place = bytes(piece).index(_NO_SEAL.encode())
                    file.write(piece)
                    digest.update(piece)
                if seal_place is not None:
                    file.seek(seal_place)
                    file.write(digest.hexdigest().encode())
                    file.seek(0, os.SEEK_END)
                file.flush()
                os.fsync(file.fileno())
                size_bytes = file.tell()
        except OSError:
            part.unlink(missing_ok=True)
            raise
        atomic_files.move_into_place(part, path_of(digest.hexdigest()))
    return size_bytes, digest.hexdigest()


def seal_of(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """The checksum that `write_tensors` puts into the metadata of a file of these tensors."""
    digest = hashlib.sha256()
    for piece in _pieces(tensors, {**metadata, SEAL: _NO_SEAL}):
        digest.update(piece)
    return digest.hexdigest()


def tensors_as_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The same file in memory."""
    # Each piece copied as it comes: it is the memory of a tensor that lives until the next one.
    return b"".join(bytes(piece) for piece in _pieces(tensors, {}))


def _pieces(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    # In one order: the library gives them back in any.
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    # Widest first, as the library does, so that each tensor's data is aligned for its type.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for _, given in ordered:
        tensor = given.detach().cpu().contiguous()
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes:
            # The tensor's own memory, without a copy; the tensor outlives the write.
            yield memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr())).cast("B")
