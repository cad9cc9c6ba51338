"""Xid errors as NVML reports them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from flatout.system.nvml_sampler import XidWatch


class _Nvml:
    """NVML that reports Xids of one GPU, whose address is 1."""

    class NVMLError(Exception):
        pass

    class NVMLError_Timeout(NVMLError):
        pass

    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *xids: int) -> None:
        self._xids = list(xids)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, *arguments: object) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: object, wait_ms: int) -> Any:
        if not self._xids:
            raise self.NVMLError_Timeout
        return SimpleNamespace(device=ctypes.c_void_p(1), eventData=self._xids.pop(0))


def _last_xid(*xids: int) -> int | None:
    gpu: Any = SimpleNamespace(address=1, xid=None)
    XidWatch(_Nvml(*xids), [gpu], [object()]).take()
    found: int | None = gpu.xid
    return found


def test_clean_up_after_an_error_does_not_hide_it() -> None:
    assert _last_xid(79, 45) == 79
    assert _last_xid(45) == 45
    assert _last_xid(45, 31) == 31
