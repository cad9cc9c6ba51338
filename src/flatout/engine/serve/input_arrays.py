"""Tensors and numbers that a client sends, as NumPy arrays of the kind that a model takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from flatout.engine.predict.array_rows import Array
from flatout.schema.serve_model import DATATYPES, TensorSpec
from flatout.schema.serve_protocol import AnyInput, TensorInput, ValueInput, WireTensor


def arrays_of(given: AnyInput, specs: Sequence[TensorSpec]) -> list[Array]:
    """The arrays of an input, one for each spec, all with the same first dimension.

    Raises:
        ValueError: it does not have these tensors.
    """
    if isinstance(given, TensorInput):
        arrays = _by_name({tensor.name: _array_of(tensor) for tensor in given.tensors}, specs)
    elif isinstance(given, ValueInput):
        arrays = _of_value(given.value, specs)
    else:
        raise ValueError("the model takes numbers, not a file or a text")
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError("the first dimension of all its tensors must be the number of samples")
    return [_as_in(array, spec) for array, spec in zip(arrays, specs, strict=True)]


def wire_tensor(name: str, array: Array) -> WireTensor:
    """An array as a message holds it."""
    dtype = array.dtype.name
    content = numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return WireTensor(name, dtype, tuple(array.shape), content.tobytes())


def _array_of(tensor: WireTensor) -> Array:
    if tensor.dtype not in DATATYPES:
        raise ValueError(f"`{tensor.name}` has the unknown dtype {tensor.dtype}")
    dtype = numpy.dtype(tensor.dtype).newbyteorder("<")
    if any(size < 0 for size in tensor.shape):
        raise ValueError(f"`{tensor.name}` has the shape {list(tensor.shape)}")
    if math.prod(tensor.shape) * dtype.itemsize != len(tensor.data):
        raise ValueError(
            f"`{tensor.name}` has {len(tensor.data)} bytes, not those of {tensor.dtype} "
            f"{list(tensor.shape)}"
        )
    return numpy.frombuffer(tensor.data, dtype).reshape(tensor.shape)


def _by_name(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> list[Array]:
    if len(arrays) == len(specs) == 1:
        return list(arrays.values())
    names = [spec.name for spec in specs]
    if sorted(arrays) != sorted(names):
        given = ", ".join(arrays) or "no tensors"
        raise ValueError(f"it has {given}; the model takes {', '.join(names)}")
    return [arrays[name] for name in names]


def _of_value(value: Any, specs: Sequence[TensorSpec]) -> list[Array]:
    """A sample or several of them, as nested lists, or as an object of such by name."""
    if isinstance(value, dict):
        values = dict(value)
    elif len(specs) == 1:
        values = {specs[0].name: value}
    else:
        names = ", ".join(spec.name for spec in specs)
        raise ValueError(f"the model takes several tensors: give an object with {names}")
    if sorted(values) != sorted(spec.name for spec in specs):
        names = ", ".join(spec.name for spec in specs)
        raise ValueError(f"it has {', '.join(map(str, values))}; the model takes {names}")
    return [_numbers(values[spec.name], spec) for spec in specs]


def _numbers(value: Any, spec: TensorSpec) -> Array:
    if not isinstance(value, list | int | float):
        raise ValueError(f"`{spec.name}` is not a list of numbers")
    try:
        array = numpy.asarray(value)
    except ValueError as error:
        raise ValueError(f"the lists in `{spec.name}` are not of the same length") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{spec.name}` contains something other than numbers")
    # JSON writes 1.0 as 1.
    if array.dtype.kind in "iu" and spec.dtype.startswith("float"):
        array = array.astype("float64")
    if array.ndim == len(spec.shape) - 1:
        array = array[numpy.newaxis]
    return array


def _as_in(array: Array, spec: TensorSpec) -> Array:
    """The array in the spec's dtype, where no number changes but by rounding."""
    sizes = zip(array.shape[1:], spec.shape[1:], strict=False)
    if array.ndim != len(spec.shape) or any(given != size for given, size in sizes if size):
        raise ValueError(
            f"`{spec.name}` has the shape {list(array.shape)}; the model takes {spec.shape_text}"
        )
    dtype = numpy.dtype(spec.dtype)
    if array.dtype == dtype:
        return array
    kinds = array.dtype.kind + dtype.kind
    if kinds == "ff" or set(kinds) <= set("iu"):
        with numpy.errstate(over="ignore"):
            converted = array.astype(dtype)
        if kinds == "ff":
            # No number of the client's becomes infinite.
            is_same = numpy.array_equal(numpy.isfinite(converted), numpy.isfinite(array))
        else:
            is_same = numpy.array_equal(converted, array)
        if is_same:
            return converted
        raise ValueError(f"`{spec.name}` has a number that {spec.dtype} cannot hold")
    raise ValueError(f"`{spec.name}` is {array.dtype.name}; the model takes {spec.dtype}")
