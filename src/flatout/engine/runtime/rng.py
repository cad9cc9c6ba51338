"""Every random number as a function of the seed: what must repeat, repeats.

The order of an epoch and the augmentation of a sample depend on (seed, epoch, index) alone, so
neither the number of loader workers nor an interruption changes them. Draws inside the step
(dropout) come from the libraries' own generators, whose states are in every checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def mixed_seed(*parts: int | str) -> int:
    """A 63-bit seed that differs for different parts; the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generators(seed: int) -> None:
    """Seeds the generators of Python, NumPy (if loaded) and torch on every device."""
    torch.manual_seed(seed)
    seed_host_generators(seed)


def seed_host_generators(seed: int) -> None:
    """Seeds what a sample's augmentation may draw from: Python, NumPy (if loaded), torch's CPU."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def generator_states(device: torch.device) -> dict[str, Any]:
    """States of all generators that a training on the device draws from."""
    states = host_generator_states()
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Puts back what generator_states gave."""
    restore_host_generators(states)
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def host_generator_states() -> dict[str, Any]:
    """States of Python's, NumPy's (if loaded) and torch's CPU generator."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def restore_host_generators(states: dict[str, Any]) -> None:
    """Puts back what host_generator_states gave."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])


def moved_generators(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The libraries whose generators have another state than before."""
    return [name for name, state in after.items() if not _is_same(before.get(name), state)]


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    # NumPy's `==` gives an array.
    return bool(
        getattr(first, "tolist", lambda: first)() == getattr(second, "tolist", lambda: second)()
    )


@contextlib.contextmanager
def untouched_generators(device: torch.device) -> Iterator[None]:
    """Leaves the generators as they were: validation must not change what training draws."""
    states = generator_states(device)
    try:
        yield
    finally:
        restore_generators(states, device)


def sample_order(num_samples: int, seed: int, epoch: int, is_shuffled: bool) -> Tensor:
    """Indices of the samples in the order of that epoch; int64, shape (num_samples,)."""
    if not is_shuffled:
        return torch.arange(num_samples)
    generator = torch.Generator().manual_seed(mixed_seed(seed, "order", epoch))
    return torch.randperm(num_samples, generator=generator)
