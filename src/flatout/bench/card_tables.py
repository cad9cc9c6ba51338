"""Cards, cloud instances and public figures: the tables that `flatout bench cards` reads."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flatout.bench.peaks import Peak, shipped_peaks
from flatout.system import atomic_files

T = TypeVar("T")
_FOLDER = Path(__file__).parent


class CardFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card, in addition to its peaks. link: B/s to its neighbors, in each direction."""

    name: str
    short: str
    memory_gib: float
    watts: float
    link: float
    source: str

    @property
    def peak(self) -> Peak:
        """What its maker states."""
        return shipped_peaks()[self.name]

    @property
    def memory_bytes(self) -> float:
        """Its memory."""
        return self.memory_gib * 2**30


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud machine as a number of cards."""

    name: str
    card: str
    num: int


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud, with those of its instances that have cards of the table."""

    name: str
    source: str
    instances: tuple[Instance, ...]


class PublishedSeries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same program on several cards. samples_per_s: by the name of the card."""

    name: str
    workload: str
    dtype: str
    num_devices: int
    flops_per_sample: float
    is_held_out: bool
    source: str
    settings: str
    samples_per_s: dict[str, float]


@functools.cache
def shipped_cards() -> dict[str, CardFacts]:
    """All cards of this release, by name; each has peaks."""
    return {card.name: card for card in _read("cards.toml", "card", tuple[CardFacts, ...])}


@functools.cache
def shipped_providers() -> tuple[Provider, ...]:
    """The clouds."""
    return _read("instances.toml", "provider", tuple[Provider, ...])


@functools.cache
def shipped_series() -> tuple[PublishedSeries, ...]:
    """The public figures."""
    return _read("public_figures.toml", "series", tuple[PublishedSeries, ...])


def date_of(name: str) -> str:
    """When the sources of a table were read."""
    return str(_document(name)["read"])


@functools.cache
def _document(name: str) -> dict[str, Any]:
    with atomic_files.open_file(_FOLDER / name) as file:
        return tomllib.load(file)


def _read(name: str, key: str, kind: type[T]) -> T:
    return msgspec.convert(_document(name)[key], kind)
