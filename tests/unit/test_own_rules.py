"""`flatout rules`, and rules of one's own in `flatout explain`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]
# The rule and the log of the documentation.
PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
RULE = re.search(r"```toml\n(id = .*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
ID = tomllib.loads(RULE)["id"]
LOG = "step 12\nLicenseError: no seat left on lic01 (pool gpu)\n"


@pytest.fixture
def home(cli: Any) -> Path:
    """Where commands are run."""
    folder: Path = cli.folder
    (folder / f"{ID}.toml").write_text(RULE, encoding="utf-8")
    (folder / "failed.log").write_text(LOG, encoding="utf-8")
    return folder


@pytest.fixture
def flatout(cli: Any, home: Path) -> Command:
    """Runs a command in an empty home."""
    variables = {
        "HOME": str(home), "APPDATA": str(home / ".config"),
        "XDG_CONFIG_HOME": str(home / ".config"), "FLATOUT_CACHE": str(home / "cache"),
    }  # fmt: skip
    return lambda *words: cli.run(*words, **variables)


def installed(home: Path, text: str = RULE, name: str = f"{ID}.toml") -> None:
    folder = home / ".config" / "flatout" / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def test_check_shows_what_a_rule_finds_in_a_log(flatout: Command, home: Path) -> None:
    done = flatout("rules", "check", f"{ID}.toml", "--case", "failed.log")
    assert done.returncode == 0, done.stderr
    assert f"{ID} is a valid rule." in done.stdout
    assert "no-seat: looks for no seat left on" in done.stdout
    assert "All seats of the license pool `gpu` are in use." in done.stdout


def test_check_fails_when_the_rule_does_not_explain_the_log(flatout: Command, home: Path) -> None:
    (home / "failed.log").write_text("all is well\n", encoding="utf-8")
    done = flatout("rules", "check", f"{ID}.toml", "--case", "failed.log")
    assert done.returncode == 1
    assert "is not the first cause" in done.stderr


@pytest.mark.parametrize(
    "text", [RULE.replace("problem", "trouble"), "\0\xff", "", RULE.replace("no-seat", "no seat")]
)
def test_check_of_an_invalid_rule_has_a_reason_and_no_traceback(
    flatout: Command, home: Path, text: str
) -> None:
    (home / f"{ID}.toml").write_text(text, encoding="latin-1")
    done = flatout("rules", "check", f"{ID}.toml")
    assert done.returncode == 2
    assert "is not a valid rule" in done.stderr
    assert "Traceback" not in done.stderr


def test_own_rule_is_used_by_explain_and_listed(flatout: Command, home: Path) -> None:
    before = flatout("explain", "failed.log")
    assert "No known cause" in before.stdout
    installed(home)
    # The second time from what was kept of the first.
    for _ in range(2):
        done = flatout("explain", "failed.log", "--json")
        assert [one["rule"] for one in json.loads(done.stdout)["findings"]] == [ID]
    assert (home / "cache" / "rules.json").is_file()
    listed = json.loads(flatout("rules", "--json").stdout)
    assert {"id": ID, "family": "own"} in [
        {"id": rule["id"], "family": rule["family"]} for rule in listed["rules"]
    ]
    page = flatout("explain", ID).stdout
    assert "Trainings that were killed keep their seat" in page
    # One that is already there can be checked again.
    again = flatout("rules", "check", str(Path(listed["folder"]) / f"{ID}.toml"))
    assert again.returncode == 0, again.stderr


def test_changed_rule_is_read_again(flatout: Command, home: Path) -> None:
    installed(home)
    flatout("explain", "failed.log")
    installed(home, RULE.replace("All seats", "Every single seat"))
    assert "Every single seat" in flatout("explain", "failed.log").stdout


def test_invalid_own_rule_is_named_and_the_others_still_work(flatout: Command, home: Path) -> None:
    installed(home)
    installed(home, "id = 1", "broken.toml")
    done = flatout("explain", "failed.log")
    assert "All seats of the license pool" in done.stdout
    assert "broken.toml" in done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="every file can be read")
def test_rule_that_could_not_be_read_is_read_when_it_can(flatout: Command, home: Path) -> None:
    installed(home)
    file = home / ".config" / "flatout" / "rules" / f"{ID}.toml"
    file.chmod(0)
    assert "No known cause" in flatout("explain", "failed.log").stdout
    file.chmod(0o600)
    assert "All seats" in flatout("explain", "failed.log").stdout


def test_own_rule_of_a_windows_editor_is_read(flatout: Command, home: Path) -> None:
    installed(home, "\ufeff" + RULE.replace("\n", "\r\n"))
    assert "All seats" in flatout("explain", "failed.log").stdout


def test_own_rule_cannot_name_code(flatout: Command, home: Path) -> None:
    installed(home, RULE.replace('decided = "no-seat"', 'verdict = "memory.anything"'))
    done = flatout("explain", "failed.log")
    assert "Python functions" in done.stderr
    assert "No known cause" in done.stdout


def test_damaged_cache_is_made_again(flatout: Command, home: Path) -> None:
    installed(home)
    flatout("explain", "failed.log")
    for content in ("", "{}", '{"stamp": "x"', '{"x": ' + "[" * 100_000):
        (home / "cache" / "rules.json").write_text(content, encoding="utf-8")
        assert "All seats" in flatout("explain", "failed.log").stdout


# None is in `has_nested_repetition`; each takes longer than anyone waits.
@pytest.mark.parametrize("slow", ["(a|a)+$", "(?:a{1,8})*b"])
def test_pattern_that_does_not_end_is_refused_with_its_line(
    flatout: Command, home: Path, slow: str
) -> None:
    text = RULE.replace('id = "no-seat"', 'id = "no-seat"\ntexts = ["no seat left"]')
    text = re.sub("pattern = .*", f"pattern = '{slow}'", text)
    line = text[: text.index("pattern =")].count("\n") + 1
    (home / "failed.log").write_text(f"no seat left {'a' * 1_000}\n", encoding="utf-8")
    (home / f"{ID}.toml").write_text(text, encoding="utf-8")
    installed(home, text)
    for words in (["explain", "failed.log"], ["rules", "check", f"{ID}.toml"]):
        done = flatout(*words)
        assert f"{ID}.toml" in done.stderr
        assert f"line {line}: signature `no-seat`: the pattern `{slow}` can take" in done.stderr
        assert "end each repetition where the next part begins" in done.stderr
    assert done.returncode == 2


def test_pattern_is_tried_once_for_check_and_for_explain(flatout: Command, home: Path) -> None:
    flatout("rules", "check", f"{ID}.toml")
    kept = json.loads((home / "cache" / "rules.json").read_text(encoding="utf-8"))
    assert list(kept["verdicts"].values()) == [None]
    kept["verdicts"] = dict.fromkeys(kept["verdicts"], "seen before")
    (home / "cache" / "rules.json").write_text(json.dumps(kept), encoding="utf-8")
    installed(home, RULE + "# another file with the same pattern\n")
    assert "seen before" in flatout("explain", "failed.log").stderr


def test_what_is_in_the_rules_folder_and_no_rule_is_named(flatout: Command, home: Path) -> None:
    installed(home, name=f"{ID}.toml.txt")
    done = flatout("explain", "failed.log")
    assert f"{ID}.toml.txt: rename it to {ID}.toml" in done.stderr
    assert "rename it" in flatout("rules").stderr
    (home / ".config" / "flatout" / "rules" / "folder.toml").mkdir()
    assert "folder.toml: it is not a file" in flatout("explain", "failed.log").stderr


def test_rules_folder_that_is_a_file_is_named(flatout: Command, home: Path) -> None:
    (home / ".config" / "flatout").mkdir(parents=True)
    (home / ".config" / "flatout" / "rules").write_text(RULE, encoding="utf-8")
    for words in (["explain", "failed.log"], ["rules"]):
        assert "it is a file, and must be a folder" in flatout(*words).stderr


def test_check_of_a_shipped_rule_does_not_call_it_a_duplicate(flatout: Command, home: Path) -> None:
    file = ROOT / "src/flatout/doctor/rules/memory/swap-off.toml"
    assert flatout("rules", "check", str(file)).returncode == 0
    # Another rule with its name is one.
    (home / "swap-off.toml").write_text(RULE.replace(ID, "swap-off"), encoding="utf-8")
    done = flatout("rules", "check", "swap-off.toml")
    assert "line 1: there is already a rule `swap-off` that flatout ships" in done.stderr
