"""How flatout came here, and what brings another version or takes it away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.errors import UsageError
from flatout.setup.flatout import installation
from flatout.setup.model.flatout_installation import Installation, Way

FLATOUT = Installation(version="0.1.0", way="pip", python="/venv/bin/python", folder="/venv")


def one(way: Way, **more: object) -> Installation:
    """An installation of that way."""
    import msgspec

    return msgspec.structs.replace(FLATOUT, way=way, **more)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """uv and pipx on PATH, and nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("uv", "pipx"):
        ending = ".exe" if sys.platform == "win32" else ""
        (tmp_path / f"{name}{ending}").touch(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("mark", "way"),
    [
        ("uv-receipt.toml", "uv"), ("pipx_metadata.json", "pipx"), ("conda-meta/", "conda"),
        ("nothing", "pip"),
    ],
)  # fmt: skip
def test_way_when_there_is_a_mark(tmp_path: Path, mark: str, way: str) -> None:
    path = tmp_path / mark
    path.mkdir() if mark.endswith("/") else path.touch()
    assert installation.way_of(tmp_path, is_checkout=False) == way


def test_way_when_its_sources_are_run(tmp_path: Path) -> None:
    assert installation.way_of(tmp_path, is_checkout=True) == "checkout"
    # A tool that was installed from a folder is still the tool's.
    (tmp_path / "uv-receipt.toml").touch()
    assert installation.way_of(tmp_path, is_checkout=True) == "uv"


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (one("pip"), "/venv/bin/python -P -m pip install --upgrade flatout"),
        (one("script"), "/venv/bin/python -P -m pip install --upgrade flatout"),
        (one("conda"), "/venv/bin/python -P -m pip install --upgrade flatout"),
        (one("script", has_pip=False),
         "UV pip install --python /venv/bin/python --upgrade flatout"),
        (one("uv"), "UV tool upgrade flatout"),
        (one("pipx"), "PIPX upgrade flatout"),
    ],
)  # fmt: skip
def test_update_command_of_each_way(programs: Path, here: Installation, words: str) -> None:
    ending = ".exe" if sys.platform == "win32" else ""
    uv, pipx = str(programs / f"uv{ending}"), str(programs / f"pipx{ending}")
    command = " ".join(installation.update_command(here))
    assert command == words.replace("UV", uv).replace("PIPX", pipx)


def test_update_command_when_a_version_or_a_file_is_named(programs: Path) -> None:
    update = installation.update_command
    assert update(one("pip"), "0.2.0")[-1] == "flatout==0.2.0"
    assert update(one("uv"), "0.2.0")[1:] == ("tool", "install", "--force", "flatout==0.2.0")
    assert update(one("pipx"), None, "/a.whl")[1:] == ("install", "--force", "/a.whl")


def test_update_command_when_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="runs from its sources"):
        installation.update_command(one("checkout", checkout="/src"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(UsageError, match="by uv, which was not found"):
        installation.update_command(one("uv"))


def test_remove_command_of_each_way(programs: Path) -> None:
    remove = installation.remove_command
    assert remove(one("script")) is None and remove(one("checkout")) is None
    command = remove(one("pip"))
    assert command == ("/venv/bin/python", "-P", "-m", "pip", "uninstall", "flatout", "--yes")
    assert (remove(one("uv")) or ())[1:] == ("tool", "uninstall", "flatout")


@pytest.mark.parametrize("text", ["nowhere.whl", ".", "notes.txt"])
def test_find_source_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="cannot be installed from"):
        installation.find_source(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\n\n# >>> flatout >>>\nPATH=x\n# <<< flatout <<<\nb\n", "a\nb\n"),
        ("a\n# >>> flatout >>>\nPATH=x\n# <<< flatout <<<\n", "a"),
        ("a\n# >>> flatout >>>\nwithout an end\n", "a\n# >>> flatout >>>\nwithout an end\n"),
        ("a\n", "a\n"),
    ],
)
def test_without_block(before: str, after: str) -> None:
    assert installation.without_block(before) == after


def test_clean_profile_keeps_what_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "real"
    path.write_bytes(b"caf\xe9\r\n\n# >>> flatout >>>\nx\n# <<< flatout <<<\nend")
    link = tmp_path / ".bashrc"
    try:
        link.symlink_to(path)
    except OSError:
        link = path  # Windows lets only some people make links.
    installation.clean_profile(str(link))
    assert path.read_bytes() == b"caf\xe9\r\nend" and (link == path or link.is_symlink())


def test_read_receipt_when_it_is_strange(tmp_path: Path) -> None:
    path = tmp_path / "receipt"
    assert installation.read_receipt(path) == {}
    path.write_bytes(b"environment: /a: b\nsha256: \nnonsense\n\xff\xfe: x\n")
    reported = installation.read_receipt(path)
    assert reported["environment"] == "/a: b" and reported["sha256"] == ""
