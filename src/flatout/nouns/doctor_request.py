"""What the doctor is asked to do."""

from __future__ import annotations

import msgspec


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options of `flatout doctor` that decide what is read.

    replayed: the file of a recording, read in place of this machine. record: file to write one to.
    """

    python: str | None = None
    is_deep: bool = False
    replayed: str | None = None
    record: str | None = None
