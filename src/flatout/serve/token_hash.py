"""The token of a server as a hash: what is sent to other processes with it does not hold it."""

from __future__ import annotations

import hmac
import secrets

import msgspec

_HASH = "sha256"


class TokenHash(msgspec.Struct, frozen=True):
    """A token that can be recognized, but not read."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, token: str) -> TokenHash:
        """The hash of a token."""
        salt = secrets.token_bytes(16)
        return cls(salt, hmac.digest(salt, token.encode(), _HASH))

    def matches(self, given: bytes) -> bool:
        """Whether it is this token, in a time that says nothing about it."""
        return hmac.compare_digest(hmac.digest(self.salt, given, _HASH), self.digest)
