"""Where things are kept: variables first, then what the operating system has for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.system import paths

VARIABLES = ("FLATOUT_STATE", "FLATOUT_DATA", "XDG_STATE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and none of the variables set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="XDG folders")
def test_folders_when_nothing_is_set(home: Path) -> None:
    assert paths.runs_folder() == home / ".local/state/flatout/runs"
    assert paths.data_folders() == [home / ".local/share/flatout/data"]


@pytest.mark.skipif(sys.platform != "win32", reason="%LOCALAPPDATA%")
def test_folders_when_nothing_is_set_on_windows(home: Path) -> None:
    assert paths.runs_folder() == home / "AppData" / "Local" / "flatout" / "runs"


@pytest.mark.skipif(sys.platform == "win32", reason="XDG folders")
def test_folders_when_xdg_is_set(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert paths.runs_folder() == Path("/var/state/flatout/runs")
    assert paths.data_folders() == [home / ".local/share/flatout/data"]


def test_folders_when_flatout_s_own_variables_are_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FLATOUT_DATA", "~/data")
    assert paths.runs_folder() == tmp_path / "state" / "runs"
    named, own = paths.data_folders()
    assert named == tmp_path / "data"
    assert own.parts[-2:] == ("flatout", "data")


def test_folders_when_a_variable_is_blank_or_relative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATOUT_STATE", "  ")
    monkeypatch.setenv("FLATOUT_DATA", "here")
    assert paths.state_folder().name == "flatout"
    assert paths.data_folders()[0] == tmp_path / "here"
