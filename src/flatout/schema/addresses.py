"""Addresses as they may be shown, kept and sent: a password is of no one else's business.

pip masks them the same way. Source: pip, `redact_auth_from_url`.
"""

from __future__ import annotations

import re

# What stands before the last @ of an address's host: a user, perhaps with a password.
_USER = re.compile(r"""(?<=://)([^/\s:@"'<>?#]*)(:?)[^/\s"'<>?#]*@""")
_MASK = "****"


def masked(text: str) -> str:
    """A text in which each address has **** in place of its password or token.

    `https://ann:secret@host/simple` becomes `https://ann:****@host/simple`.
    """
    return _USER.sub(_mask, text) if "://" in text else text


def without_user(text: str) -> str:
    """A text in which no address has a user or a password, for what is kept."""
    return _USER.sub("", text) if "://" in text else text


def _mask(match: re.Match[str]) -> str:
    user, colon = match[1], match[2]
    return f"{user}:{_MASK}@" if user and colon else f"{_MASK}@"
