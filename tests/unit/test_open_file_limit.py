"""The limit of open files: raised as far as the user may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout.system.open_file_limit import raise_open_file_limit

SRC = Path(__file__).resolve().parents[2] / "src"

CODE = """
import resource
import sys
sys.path.insert(0, {src!r})
from flatout.system.open_file_limit import raise_open_file_limit

resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_open_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(("soft", "raised"), [(64, 512), (512, 512)])
def test_limit_when_it_can_be_raised(soft: int, raised: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(src=str(SRC), soft=soft, hard=512)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(raised), "512"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_limit_when_the_system_refuses_more_than_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    now = [256, resource.RLIM_INFINITY]

    def set_as_on_macos(_: int, limits: tuple[int, int]) -> None:
        if limits[0] > 24_576:
            raise ValueError("current limit exceeds maximum limit")
        now[:] = limits

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", set_as_on_macos)
    raise_open_file_limit()
    assert now == [16_384, resource.RLIM_INFINITY]
