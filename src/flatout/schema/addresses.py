"""Addresses as they may be shown, kept and sent: a password is of no one else's business.

pip masks them the same way. Source: pip, `redact_auth_from_url`.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import urlsplit

import msgspec

# What stands before the last @ of an address's host: a user, perhaps with a password.
_USER = re.compile(r"""(?<=://)([^/\s:@"'<>?#]*)(:?)[^/\s"'<>?#]*@""")
# A secret among the parameters of an address, as databases take it. In HTML, & is &amp;.
_PARAMETER = re.compile(
    r"""(?i)((?:(?<=[?&])|(?<=&amp;))(?:password|passwd|pwd|token|api_key)=)[^&#\s"'<>]*"""
)
# A string of a JSON document.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_MASK = "****"


def masked(text: str) -> str:
    """A text in which each address has **** in place of its password or token.

    `https://ann:secret@host/simple` becomes `https://ann:****@host/simple`.
    """
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{_MASK}", _USER.sub(_mask, text))


def masked_document(document: str) -> str:
    """A JSON document in which each string is masked; still one where a secret ends in a quote."""
    return _STRING.sub(_mask_string, document) if "://" in document else document


def without_secrets(address: str) -> str:
    """An address without user, password and parameters, for what is kept."""
    if "://" not in address:
        return address
    return _USER.sub("", address).partition("?")[0]


@functools.lru_cache(maxsize=64)
def host_in(header: str) -> str:
    """The host in a Host header, in lower case, without its port; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _mask_string(match: re.Match[str]) -> str:
    text = match[0]
    if "://" not in text:
        return text
    known = msgspec.json.decode(text, type=str)
    hidden = masked(known)
    return text if hidden == known else msgspec.json.encode(hidden).decode()


def _mask(match: re.Match[str]) -> str:
    user, colon = match[1], match[2]
    return f"{user}:{_MASK}@" if user and colon else f"{_MASK}@"
