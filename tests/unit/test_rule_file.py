"""Files of rules: what is valid, and what is said of the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.diagnose import case_from_text
from flatout.doctor.rule_file import RuleProblem, check_strictly, rule_from
from flatout.doctor.ruleset import RULES_FOLDER, RuleSet, problems_of, shipped_rules
from flatout.doctor.toml_text import TomlPath, line_of

ROOT = Path(__file__).resolve().parents[2]
VALID = """
id = "disk-is-on-fire"
problem = "The disk is on fire."
because = [
    { when = "smoke.color", text = "the smoke is {smoke.color}" },
    { text = "it says so" },
]
decided = "smoke and not steam"
likely = "smoke"
warning_if = "smoke.color=white"
why = "Data burns."
example = "fire: black smoke"
sources = ["example.org"]

[[fix]]
text = "put it out"
commands = ["extinguish --color {smoke.color|grey}"]
where = { wsl = "powershell", elsewhere = "here" }

[[signature]]
id = "smoke"
pattern = ["(?P<color>black|white) smoke", "smoke alarm"]

[[signature]]
id = "steam"
texts = ["only steam"]
"""


def rule_of(text: str = VALID, *, is_own: bool = True):  # type: ignore[no-untyped-def]
    return rule_from(text, file="own/disk-is-on-fire.toml", family="own", is_own=is_own)


def finding_in(log: str):  # type: ignore[no-untyped-def]
    rule = rule_of()
    return rule.check(case_from_text([log.encode()], RuleSet(rules=(rule,))))


def test_rule_fires_with_its_values_in_its_texts() -> None:
    found = finding_in("fire: black smoke\n")
    assert (found.certainty, found.severity) == ("decided", "error")
    assert found.because == "the smoke is black"
    assert found.fixes[0].commands == ("extinguish --color black",)
    assert [one.text for one in found.evidence] == ["fire: black smoke"]


def test_rule_is_quiet_without_its_signs() -> None:
    assert finding_in("only steam\n") is None


def test_conditions_decide_certainty_and_severity() -> None:
    assert finding_in("black smoke\nit is only steam").certainty == "likely"
    assert finding_in("white smoke").severity == "warning"


def test_default_stands_for_a_value_that_was_not_captured() -> None:
    found = finding_in("the smoke alarm rings")
    assert found.because == "it says so"
    assert found.fixes[0].commands == ("extinguish --color grey",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('id = "disk-is-on-fire"', 'id = "disk_is_on_fire"', "words joined by hyphens"),
        ('id = "disk-is-on-fire"', 'id = "disk-burns"', "must be called disk-burns.toml"),
        ('problem = "The disk is on fire."\n', "", "the rule has no `problem`, which it needs"),
        ('why = "Data', 'wy = "Data', "line 11: the rule has no field `wy`; did you mean `why`?"),
        ("smoke and not steam", "smoke and and", "a name is missing before `and`"),
        ("(?P<color>black", "(?P<color>(black", "the pattern is invalid"),
        ('texts = ["only steam"]', 'texts = [":="]', "has no letters"),
        ('texts = ["only steam"]', "", "it needs `texts`, a `pattern` or `xid`"),
        ('texts = ["only steam"]', 'pattern = "\\\\d+"', "none can be derived"),
        ('texts = ["only steam"]', 'pattern = "(a+)+ only steam"', "can take forever"),
        ('{ text = "it says so" },', "", "must have no `when`"),
        ('decided = "smoke and not steam"\nlikely = "smoke"', "", "must name a signature"),
        ('likely = "smoke"', 'likely = "smoke"\nverdict = "disk.fire"', "Python functions"),
        ("[[fix]]", "[[fix]", "line"),
        ('text = "put it out"', "", "a fix needs a `text`"),
        ('where = { wsl = "powershell"', 'where = { wsl = "cmd"', "cmd"),
        ("smoke and not steam", "(" * 5_000 + "smoke" + ")" * 5_000, "nested too deeply"),
        ('problem = "The disk is on fire."', "problem = []", "`problem` is empty"),
        ('texts = ["only steam"]', 'pattern = "steam {0,99999999999999}"', "too large"),
        ('texts = ["only steam"]', 'texts = ["only steam"]\nlines = 0', "at least 1"),
        ('id = "steam"', 'id = "wsl"', "another meaning"),
        ("why =", 'explains = ["disk-is-on-fire"]\nwhy =', "names the rule itself"),
        ("why =", "prior = 101\nwhy =", "between 0 and 100"),
        # Each with its line, in TOML's words.
        ("why =", "prior = '3'\nwhy =", "line 11: `prior` must be a whole number, not a string"),
        ('["example.org"]', '"example.org"', "line 13: `sources` must be a list, not a string"),
        ("[[fix]]", "[fix]", "line 15: write `[[fix]]`, with two brackets"),
        ("[[fix]]", "[[fix]]\nprior = 3", "line 16: `prior` belongs to the rule"),
        ("commands =", "comands =", "line 17: `[[fix]]` number 1 has no field `comands`; did you"),
        ("commands =", "pattern =", "line 17: `pattern` belongs to a `[[signature]]`"),
        ('"powershell"', '"powershel"', "line 18: `wsl` is `powershel`; did you mean `powershell`"),
        ('{ text = "it says so" }', '{ txt = "so" }', "line 6: item 2 of `because` has no field"),
        ('id = "steam"', "", "line 24: `[[signature]]` number 2 has no `id`"),
        ('"only steam"', '"only steam",\n"="', "line 27: signature `steam`: the text `=` has no"),
        ("black|white) smoke", "black|white smoke", "line 22: signature `smoke`: the pattern is"),
        ('"it says so"', '"it says \\s"', "line 6, column 25: Unescaped '\\' in a string; put a"),
        ('"it says so"', '"it says', "line 6: a string in single quotes or double quotes must end"),
        # What would be shown as it is, or is never used.
        ("is {smoke.color}", "is {color}", "line 5: `{color}` would be shown as it is; write `{sm"),
        ("it says so", "it is {volume}", "line 6: `{volume}` would be shown as it is; no sign"),
        ("it says so", "it is {no_sign.volume}", "line 6: `{no_sign.volume}` would be shown"),
        ("{smoke.color|grey}", "{color|grey}", "line 17: `{color|grey}` would be shown as it is"),
        ("smoke and not steam", "smoke", "line 9: `likely` is never reached: whenever it is true"),
        ("smoke and not steam", "smoke and not smoke", "line 8: `decided` can never be true"),
        ('likely = "smoke"', 'likely = "smoke"\nnever = "smoke"', "line 8: `decided` is never re"),
        ('{ when = "smoke.color", text', "{ text", "line 5: the variants after `the smoke is"),
    ],
)
def test_invalid_rule_says_what_is_wrong(old: str, new: str, why: str) -> None:
    assert old in VALID
    with pytest.raises(RuleProblem) as caught:
        rule_of(VALID.replace(old, new, 1))
    assert why in caught.value.why
    assert "own/disk-is-on-fire.toml" in str(caught.value)


def test_braces_of_commands_are_no_captured_values() -> None:
    command = "docker ps --format '{{.Names}}' $HOME ${HOME} | awk '{print}' '{print $1}'"
    assert rule_of(VALID.replace("extinguish --color {smoke.color|grey}", command)).data.fix


def test_rule_that_does_not_fit_the_others_is_named() -> None:
    others = shipped_rules()
    taken = others.rules[0]
    text = VALID.replace('"smoke and not steam"', '"smoke and not no-such-sign"')
    found = problems_of(rule_of(text), others)
    assert list(map(str, found)) == [
        "`no-such-sign` is in a condition, but no signature has this id"
    ]
    double = VALID.replace("smoke", taken.signatures[0].id)
    assert any("already a signature" in str(one) for one in problems_of(rule_of(double), others))
    for old in ("{smoke.color|grey}", "smoke.color=white"):
        wrong = VALID.replace(old, old.replace("smoke.color", "smoke.colour"))
        assert list(map(str, problems_of(rule_of(wrong), others))) == [
            "`smoke.colour` is used, but no signature `smoke` captures a group `colour`"
        ]
    explains = VALID.replace("why =", 'explains = ["no-such-rule"]\nwhy =')
    assert list(map(str, problems_of(rule_of(explains), others))) == [
        "`explains` names `no-such-rule`, which is no rule"
    ]


def test_line_of_every_key_in_shipped_rules() -> None:
    for path in RULES_FOLDER.glob("*/*.toml"):
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        for at, key in keys_in(tomllib.loads(text)):
            line = line_of(text, at)
            assert line is not None
            assert re.match(rf"\s*{key}\b|\[\[{key}\]\]", lines[line - 1]), (path, at)


def keys_in(table: dict[str, Any]) -> Iterator[tuple[TomlPath, str]]:
    """Every field of a rule and of its blocks, with its name."""
    for key, value in table.items():
        if key not in ("fix", "signature", "fact"):
            yield (key,), key
            continue
        for at, block in enumerate(value):
            yield (key, at), key
            # `[[fix.edits]]` counts as a part of its fix.
            yield from (((key, at, name), name) for name in block if name != "edits")


def test_every_rule_is_in_the_repository() -> None:
    # A folder called `build` was once ignored by git, and its rules were lost.
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no checkout of git")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", str(RULES_FOLDER)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip(f"git cannot read the checkout: {listed.stderr.strip()}")
    known = {ROOT / name for name in listed.stdout.split("\0") if name}
    assert [path for path in RULES_FOLDER.rglob("*.toml") if path not in known] == []


@pytest.mark.parametrize("rule", shipped_rules().rules, ids=lambda rule: rule.id)
def test_shipped_rule_fits_the_others(rule) -> None:  # type: ignore[no-untyped-def]
    whole = shipped_rules()
    others = RuleSet(
        rules=tuple(other for other in whole.rules if other.id != rule.id), shared=whole.shared
    )
    assert problems_of(rule, others) == []
    check_strictly(rule)
    assert (RULES_FOLDER / rule.family / f"{rule.id}.toml").is_file()
