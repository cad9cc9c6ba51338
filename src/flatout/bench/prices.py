"""Prices that a person types, or keeps in a file: flatout ships none."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.bench.card_tables import shipped_cards, shipped_providers
from flatout.errors import FlatoutError, UsageError
from flatout.system import atomic_files

_EXAMPLE = "write NAME=PRICE for an hour, such as `--price 'H100 SXM=1.99'`"


def prices_from(typed: Sequence[str], path: str | None) -> tuple[dict[str, float], str | None]:
    """Prices for an hour by the name of a card or instance, and where those of a file are from.

    Raises:
        UsageError: bench-bad-price, bench-unknown-card.
    """
    found, origin = _read(Path(path).expanduser()) if path is not None else ({}, None)
    for text in typed:
        name, equals, price = text.rpartition("=")
        if not equals:
            raise _bad(f"`--price {text}` has no price.", "it has no `=`")
        found[known_name(name)] = _price(price, f"`--price {text}`")
    return found, origin


def known_name(text: str) -> str:
    """The name of a card or instance in the tables: whole, in any case, with or without NVIDIA.

    Raises:
        UsageError: bench-unknown-card.
    """
    names = {_key(name): name for name in _names()}
    names |= {_key(card.short): card.name for card in shipped_cards().values()}
    found = names.get(_key(text))
    if found is None:
        near = difflib.get_close_matches(_key(text), names, n=3, cutoff=0.5)
        shorts = ", ".join(card.short for card in shipped_cards().values())
        raise UsageError(
            "bench-unknown-card",
            f"`{text.strip()}` is not a card or instance of the tables.",
            because=f"similar: {', '.join(near)}" if near else f"cards: {shorts}",
            fix="use a name as `flatout bench cards` prints it",
        )
    return found


def _names() -> list[str]:
    instances = [one.name for provider in shipped_providers() for one in provider.instances]
    return [*shipped_cards(), *instances]


def _key(text: str) -> str:
    words = text.lower().replace("-", " ").replace("_", " ").split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "tesla"))


def _read(path: Path) -> tuple[dict[str, float], str]:
    try:
        with atomic_files.mapped_os_errors(path), atomic_files.open_file(path) as file:
            document = tomllib.load(file)
    except (FlatoutError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"{path} is not a readable file of prices.", str(error)) from error
    prices, at = document.get("prices"), document.get("read")
    if not isinstance(prices, Mapping) or at is None:
        lacking = "a date, such as `read = 2026-11-24`" if at is None else "a table `[prices]`"
        raise _bad(f"{path} lacks {lacking}.", "prices change: a file of them needs its date")
    found = {
        known_name(name): _price(str(price), f"`{name}` in {path}")
        for name, price in prices.items()
    }
    return found, f"{path.name}, read {at}"


def _price(text: str, where: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 < price < 1e9:
        raise _bad(f"{where} is not a price.", "a price is a positive number, without a currency")
    return price


def _bad(problem: str, because: str) -> UsageError:
    return UsageError("bench-bad-price", problem, because=because, fix=_EXAMPLE)
