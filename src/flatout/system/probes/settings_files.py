"""Files of settings in sections, as .wslconfig, wsl.conf and NVIDIA's config.toml are."""

from __future__ import annotations

import re


def parse_settings(text: str) -> dict[str, str]:
    """`section.key` -> value, in lower case but for the value. Other lines are skipped.

    Read by hand: WSL takes files that configparser refuses, with duplicate keys.
    """
    settings: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("[") and "]" in stripped:
            section = stripped[1 : stripped.index("]")].strip().lower()
            continue
        key, separator, value = stripped.partition("=")
        if not separator or not key.strip() or stripped.startswith(("#", ";")):
            continue
        value = re.sub(r"\s+[#;].*$", "", value.strip()).strip().strip("\"'")
        settings[f"{section}.{key.strip().lower()}"] = value
    return settings


def without_damage(text: str) -> tuple[str, str]:
    """A text that was read as UTF-8, and the encoding that it really had.

    What is Latin in a UTF-16 file is still there, each letter followed by a zero.
    """
    if "\0" in text:
        return text.replace("\0", "").replace("\ufffd", ""), "utf-16"
    if text.startswith("\ufeff"):
        return text[1:], "utf-8-sig"
    return text, "other" if "\ufffd" in text else "utf-8"
