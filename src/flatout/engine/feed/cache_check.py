"""Checks whether a data set's samples can be cached: always the same, and not too large.

A sample with random parts must never be cached. Some samples of every kind are read twice under
different random states and compared bit for bit; a random generator that moves shows that a sample
is random. The caching feed watches the generators for all samples, and rereads a few in each epoch.
"""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from flatout.engine.feed.collate import stacked
from flatout.engine.runtime import rng
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.errors import UsageError
from flatout.schema.units import bytes_text
from flatout.system.clock import elapsed_s
from flatout.system.free_memory import free_memory_bytes

# Number of samples to read from all over the data; fewer if they are slow, but never none.
_MOST_SAMPLES, _LEAST_SAMPLES = 256, 4
_LOOKING_S = 2.0
# Attributes with the class of each sample: some data sets are random in some classes only.
_LABELS = ("targets", "labels")

# Share of the free memory; the rest is for the model, its batches and other programs.
_SHARE_OF_FREE = 0.5

# How many levels deep a data set is searched for its own random generators.
_DEPTH, _MOST_ITEMS = 6, 64

_LIBRARIES = ("torch", "torchvision", "numpy", "PIL", "flatout")

_SIMPLE = (str, bytes, int, float, complex, type(None))

Collate = Callable[[list[Any]], Any]

NOT_CACHEABLE = "data-cannot-be-cached"


@dataclass(frozen=True, kw_only=True)
class Caching:
    """The ways of caching a data set's samples.

    is_stacked: as rows of tensors from which batches are sliced; else one by one.
    num_bytes: predicted size of all samples together. sample_s: time to read one.
    num_sharing: number of processes on this machine that each cache as much.
    """

    is_stacked: bool
    num_bytes: int
    sample_s: float
    num_sharing: int = 1


def caching_of(
    dataset: Any, collate: Collate | None, *, reserved_bytes: int = 0, num_sharing: int = 1
) -> Caching:
    """Examines some samples; the generators are left unchanged.

    Args:
        dataset: map-style.
        collate: the experiment's own, if it has one.
        reserved_bytes: memory needed for other purposes.
        num_sharing: number of processes on this machine that each cache all samples.

    Raises:
        UsageError: data-cannot-be-cached, with the reason.
    """
    states = rng.host_generator_states()
    try:
        samples, sample_s = _looked_at(dataset)
    finally:
        rng.restore_host_generators(states)
    is_stacked = collate is None and _can_be_rows(samples)
    sizes = [_row_bytes(sample) if is_stacked else _size_of(sample) for sample in samples]
    num_bytes = round(len(dataset) * sum(sizes) / len(sizes))
    limit = int(_SHARE_OF_FREE * max(0, free_memory_bytes() - reserved_bytes) / num_sharing)
    if num_bytes > limit:
        whose = f", for each of {num_sharing} ranks" if num_sharing > 1 else ""
        raise not_cacheable(
            f"all samples together would take {bytes_text(num_bytes)}; half of the free memory "
            f"is {bytes_text(limit)}{whose}"
        )
    return Caching(
        is_stacked=is_stacked, num_bytes=num_bytes, sample_s=sample_s, num_sharing=num_sharing
    )


def not_cacheable(because: str) -> UsageError:
    """An error about data that cannot be cached."""
    return UsageError(
        "data-cannot-be-cached",
        "`data_path=cached` does not work with this data.",
        because=because,
        fix="use data_path=loader, or leave data_path out",
    )


def random_samples(index: int) -> UsageError:
    """An error about a sample that draws random numbers."""
    because = f"its samples are random: reading sample {index} used a random generator"
    return not_cacheable(because)


def _looked_at(dataset: Any) -> tuple[list[Any], float]:
    """Some samples, and the time to read one.

    Raises:
        UsageError: data-cannot-be-cached, if they differ when read again.
    """
    own = own_generators(dataset)
    begin_s = elapsed_s()
    samples: dict[int, Any] = {}
    for index in _looked_for(dataset):
        samples[index] = copied(_read(dataset, index, 0, own))
        if len(samples) >= _LEAST_SAMPLES and elapsed_s() - begin_s > _LOOKING_S / 2:
            break
    for index in reversed(samples):
        # In a different order: a data set whose samples depend on a counter must be noticed too.
        if not same_bits(samples[index], _read(dataset, index, 1, own)):
            raise _another(index)
    return list(samples.values()), (elapsed_s() - begin_s) / (2 * len(samples))


def _looked_for(dataset: Any) -> list[int]:
    """Indices of samples: one of each class, if classes are known, and others from anywhere.

    Not equally spaced: a kind of sample that recurs regularly would be hit always or never.
    """
    labels = next(
        (labels_here for name in _LABELS if (labels_here := _labels_in(dataset, name))), []
    )
    firsts = list({label: index for index, label in reversed(list(enumerate(labels)))}.values())
    order = rng.sample_order(len(dataset), 0, 0, is_shuffled=True)[:_MOST_SAMPLES].tolist()
    return list(dict.fromkeys([0, len(dataset) - 1, *firsts[:_MOST_SAMPLES], *order]))


def _labels_in(dataset: Any, name: str) -> list[Any]:
    labels: Any = getattr(dataset, name, None)
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    is_one_each = isinstance(labels, list | tuple) and len(labels) == len(dataset)
    return (
        list(labels)
        if is_one_each and all(isinstance(label, int | str) for label in labels)
        else []
    )


def changed_since(
    dataset: Any, index: int, is_kept: Callable[[Any], bool], own: list[Any]
) -> UsageError | None:
    """Reads a sample again; returns an error if it differs from the cached one.

    The generators of the process are left unchanged.

    Args:
        dataset: map-style.
        index: of the sample.
        is_kept: whether a sample equals the cached one.
        own: the data set's own generators.
    """
    states = rng.host_generator_states()
    try:
        sample = _read(dataset, index, 1, own)
    except UsageError as error:
        return error
    finally:
        rng.restore_host_generators(states)
    return None if is_kept(sample) else _another(index)


def _another(index: int) -> UsageError:
    return not_cacheable(
        f"its samples are random: sample {index} was different when it was read again"
    )


def _read(dataset: Any, index: int, turn: int, own: list[Any]) -> Any:
    """Reads a sample under its own random state.

    Raises:
        UsageError: data-cannot-be-cached, if a generator was used.
    """
    rng.seed_host_generators(rng.mixed_seed("caching", turn, index))
    before = rng.host_generator_states(), states_of(own)
    sample = dataset[index]
    after = rng.host_generator_states(), states_of(own)
    if is_moved(before[0], after[0]) or not same_bits(before[1], after[1]):
        raise random_samples(index)
    return sample


def is_moved(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether random numbers were drawn, judging by the states of the generators."""
    # NumPy may have been imported since.
    return any(not same_bits(state, after[name]) for name, state in before.items())


def own_generators(thing: Any) -> list[Any]:
    """Random generators that an object holds or uses, such as those of its transforms."""
    return list(_own_generators(thing, _DEPTH, set()))


def states_of(generators: list[Any]) -> list[Any]:
    """States of generators, for comparison."""
    return [_state_of(generator) for generator in generators]


def _own_generators(thing: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if id(thing) in seen or depth == 0 or isinstance(thing, (*_SIMPLE, Tensor, type, ModuleType)):
        return
    seen.add(id(thing))
    numpy = sys.modules.get("numpy")
    kinds = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    if isinstance(thing, (torch.Generator, random.Random, *kinds)):
        yield thing
        return
    for item in itertools.islice(_inside(thing), _MOST_ITEMS):
        yield from _own_generators(item, depth - 1, seen)


def _inside(thing: Any) -> Iterator[Any]:
    """The objects that an object holds; for a function also its closure and globals."""
    if isinstance(thing, dict | list | tuple):
        yield from thing.values() if isinstance(thing, dict) else thing
        return
    kind = vars(type(thing))
    for candidate in (thing, kind.get("__call__"), kind.get("__getitem__")):
        function = getattr(candidate, "__func__", candidate)
        if isinstance(function, FunctionType) and _is_searched(function):
            yield from _around(function)
    if isinstance(thing, MethodType):
        yield thing.__self__
    if isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    yield from getattr(thing, "__dict__", {}).values()


def _is_searched(function: FunctionType) -> bool:
    """Libraries draw from the generators of the process, which are watched anyway."""
    package = (function.__module__ or "").partition(".")[0]
    return package not in _LIBRARIES and package not in sys.stdlib_module_names


def _around(function: FunctionType) -> Iterator[Any]:
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    names = function.__code__.co_names
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it exists, or it raises
    except ValueError:
        return False
    return True


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _can_be_rows(samples: list[Any]) -> bool:
    """Whether batches of these samples are tensors of one form, so that rows can be cached."""
    try:
        batch = stacked(samples)
        forms = {form_of(stacked([sample])) for sample in samples}
    except (UsageError, RuntimeError):
        # Not alike, though some of them may still form a batch.
        return False
    if forms != {form_of(batch)} or not is_all_tensors(batch):
        return False
    # A subclass of dict would come back as a plain dict.
    return same_bits(with_tensors(batch, tensors_in(batch)), batch) and all(
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        for tensor in tensors_in(batch)
    )


def form_of(batch: Any) -> str:
    """Nesting of a batch, with the type and shape of one sample in each of its tensors."""
    parts = ((tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors_in(batch))
    return repr(with_tensors(batch, parts))  # type: ignore[arg-type]


def _row_bytes(sample: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(stacked([sample])))


def _size_of(sample: Any) -> int:
    """Approximate size in memory: as much as in a file."""
    try:
        return len(pickle.dumps(sample))
    except Exception as error:
        raise not_cacheable(f"cannot determine the size of a sample: {error}") from error


def copied(sample: Any) -> Any:
    """A copy of a sample that shares no memory with it."""
    if isinstance(sample, Tensor):
        # Without the whole tensor that it may be a row of.
        return sample.clone()
    if isinstance(sample, _SIMPLE):
        return sample
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*map(copied, sample))
    if type(sample) in (list, tuple):
        return type(sample)(map(copied, sample))
    if type(sample) is dict:
        return {key: copied(item) for key, item in sample.items()}
    try:
        return copy.deepcopy(sample)
    except Exception as error:
        kind = type(sample).__name__
        raise not_cacheable(f"a sample holds a {kind}, which cannot be copied: {error}") from error


def same_bits(first: Any, second: Any) -> bool:
    """Whether two samples are identical, bit for bit; NaN equals itself."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor) and first.layout == torch.strided and not first.is_quantized:
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and torch.equal(_bytes_of(first), _bytes_of(second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            same_bits(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_bits, first, second))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(first, numpy.ndarray) and not first.dtype.hasobject:
        alike = first.dtype == second.dtype and first.shape == second.shape
        return bool(alike and first.tobytes() == second.tobytes())
    try:
        return first is second or pickle.dumps(first) == pickle.dumps(second)
    except Exception as error:
        kind = type(first).__name__
        raise not_cacheable(f"a sample holds a {kind}, which cannot be compared") from error


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
