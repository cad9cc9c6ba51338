"""Xid events, which NVIDIA's driver writes to the kernel's log when a GPU fails.

The numbers are listed in https://docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

from flatout.doctor.signature import Signature, signature

# The kernel's line in all driver versions, the Kubernetes device plugin, dcgm-exporter, prose.
_BEFORE = (
    r"(?:\b|(?<=dev_))xid(?:_errors\{[^}]{0,600}\})?(?: ?\((?:PCI:)?[\da-f:.]{5,20}\))?"
    r"(?: ?errors?)?[ :=]{0,3}"
)


def xid(id: str, *numbers: int) -> Signature:
    """The signature of Xid events with these numbers."""
    listed = "|".join(str(number) for number in numbers)
    return signature(
        id, "Xid", "XidCriticalError", "XID_ERRORS", pattern=rf"{_BEFORE}(?:{listed})(?![\d.])"
    )
