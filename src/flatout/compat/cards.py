"""Finds a card by name; case, spaces, "NVIDIA" and "Laptop GPU" do not matter.

The rest must match the whole name: by substrings, an RTX A4000 would be an A40.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Sequence

from flatout.compat.rows import Card

# Optional parts of a name that make no difference to software.
_BESIDE = {
    "nvidia", "corporation", "geforce", "quadro", "tesla", "grid", "hgx", "dgx", "graphics",
    "card", "gpu", "developer", "kit",
    "laptop", "mobile", "notebook", "desktop", "with", "max", "q", "maxq", "design", "edition",
    "generation", "gen", "blackwell", "workstation", "server", "sff", "oem", "lhr", "founders",
    "pcie", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e", "nvl",
    "active",
    "tensor", "nvgpu", "tm", "r",
}  # fmt: skip
_VGPU_PROFILE = re.compile(r"-\d+[abcq]\b")
_MIG_INSTANCE = re.compile(r"\bmig \d.*")
_MEMORY = re.compile(r"\b\d+\s?(?:gb?|gib)\b")
# "MX 350" is one word, "RTX3060", "1080ti" and "GTX1660Super" are not.
_TORN = re.compile(r"\b(mx|[abhklmptv]) (?=\d)")
_GLUED = (
    re.compile(r"\b(rtx|gtx|gt|geforce|quadro|tesla|nvidia|titan)(?=\d)"),
    re.compile(r"(?<=\d)(?=(?:ti|super)\b|tisuper\b)"),
    re.compile(r"\b(ti)(?=super\b)"),
)


def find_card(text: str, cards: Sequence[Card]) -> Card | None:
    """The card of that name; None if there is none, or if the name is ambiguous."""
    card_key = _key(text)
    if not card_key:
        return None
    for keys in (_whole_keys, _short_keys):
        matches = [card for card in cards if card_key in keys(card)]
        if matches and len({(card.capability, card.machine) for card in matches}) == 1:
            return matches[0]
    return None


def near_cards(text: str, cards: Sequence[Card]) -> list[str]:
    """Similar names of cards, nearest first."""
    by_key = {_key(card.name): card.name for card in cards}
    return [by_key[key] for key in difflib.get_close_matches(_key(text), by_key, n=4, cutoff=0.6)]


def _whole_keys(card: Card) -> Iterator[str]:
    yield _key(card.name)


def _short_keys(card: Card) -> Iterator[str]:
    """Without the prefix that is often omitted: "3060 Ti", "A6000"."""
    words = _key(card.name).split()
    if words[0] in ("rtx", "gtx", "gt") and len(words) > 1:
        yield " ".join(words[1:])
    if words[0] in ("jetson", "drive") and len(words) > 2:
        yield " ".join(words[1:])


# Each name is compared with that of every card.
@functools.lru_cache(maxsize=4096)
def _key(text: str) -> str:
    plain = _MIG_INSTANCE.sub(" ", text.lower())
    plain = _VGPU_PROFILE.sub(" ", plain)
    plain = _MEMORY.sub(" ", plain)
    plain = re.sub(r"[^a-z0-9]+", " ", plain)
    plain = _TORN.sub(r"\1", plain)
    for glued in _GLUED:
        plain = glued.sub(lambda match: f"{match[0]} ", plain)
    return " ".join(word for word in plain.split() if word not in _BESIDE)
