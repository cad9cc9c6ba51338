"""`flatout setup` and `flatout compat` as they are typed, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.cli.main import run

PASCAL = ["--for", "NVIDIA GeForce GTX 1080 Ti", "--driver", "580.95.05", "--os", "linux"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["setup", "--offline", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_setup_when_programs_ask(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, "torch", *PASCAL, "--python", "3.12", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer) == ["choice", "why", "ruled_out", "nearest"]
    assert answer["choice"] == {
        "framework": "torch", "version": "2.14.1", "cuda": "cu126",
        "index": "https://download.pytorch.org/whl/cu126", "python": "3.12",
    }  # fmt: skip
    assert answer["why"] and answer["ruled_out"] and answer["nearest"] == []


def test_setup_when_there_is_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, "--for", "cpu", "--json")
    assert json.loads(out)["choice"]["cuda"] == "cpu"


def test_setup_when_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "tf", "--for", "rtx 5090", "--os", "wsl2", "--json")
    answer = json.loads(out)
    assert code == 1 and answer["choice"] is None and answer["nearest"]
    _, shown, _ = ask(capsys, "tf", "--for", "rtx 5090", "--os", "wsl2")
    assert "nothing fits" in shown and "would fit" in shown


def test_setup_when_several_frameworks_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, "torch", "jax", "paddle", *PASCAL, "--json")
    answers = json.loads(out)["answers"]
    assert [one["choice"]["cuda"] for one in answers] == ["cu126", "cu12", "cu118"]


def test_setup_when_people_ask(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, *PASCAL)
    assert code == 0
    assert "torch       2.14.1" in out and "ruled out" in out


@pytest.mark.parametrize(
    ("arguments", "rule", "said"),
    [
        (["torhc"], "unknown-framework", "did you mean `torch`"),
        (["torch==two"], "not-a-version", "torch==2.9.*"),
        (["--for", "RTX 3O60"], "unknown-card", "did you mean"),
        (["--for", ""], "unknown-card", "as nvidia-smi does"),
        (["--driver", "580"], "machine-not-described", "--for"),
        (["--os", "windows"], "machine-not-described", "--for"),
        (["--for", "cpu", "--driver", "newest"], "not-a-version", "581.42"),
        (["--python", "three"], "not-a-version", "like 3.12"),
        (["--cuda", "latest"], "not-a-version", "cu126"),
        (["--for", "cpu", "--os", "beos"], "wrong-usage", "--help"),
    ],
)
def test_setup_when_the_input_is_bad(
    capsys: pytest.CaptureFixture[str], arguments: list[str], rule: str, said: str
) -> None:
    code, _, err = ask(capsys, *arguments)
    assert code == 2
    assert f"explain {rule}" in err and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--for", "cpu", "--driver", "580"], "--driver has no effect"),
        (["--for", "rtx 3060", "--cpu", "--cuda", "12.6"], "--cuda has no effect"),
        (["--for", "cpu", "--with", "einops"], "--with has no effect with --for"),
        (["--for", "cpu", "--in", "here"], "--in has no effect with --for"),
        (["--for", "cpu", "-r", "x.txt"], "-r has no effect with --for"),
        (["--for", "cpu", "--manager", "pip"], "--manager has no effect with --for"),
        (["--nightly", "torch==2.9.*", "--for", "cpu"], "a version has no effect"),
    ],
)
def test_setup_when_a_setting_has_no_effect(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, _, err = ask(capsys, *arguments)
    assert code == 0 and said in err


def test_compat_tells_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compat"]) == 0
    assert "days old" in capsys.readouterr().out.replace("1 day old", "1 days old")
    assert run(["compat", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["updated"] is None and state["num_cards"] > 300
