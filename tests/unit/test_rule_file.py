"""Files of rules: what is valid, and what is said of the rest."""

from __future__ import annotations

import pytest

from flatout.doctor.diagnose import case_from_text
from flatout.doctor.rule_file import RuleProblem, rule_from
from flatout.doctor.ruleset import RULES_FOLDER, RuleSet, problems_of, shipped_rules

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
        ('problem = "The disk is on fire."\n', "", "missing required field `problem`"),
        ('why = "Data', 'wy = "Data', "unknown field `wy`"),
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
    ],
)
def test_invalid_rule_says_what_is_wrong(old: str, new: str, why: str) -> None:
    assert old in VALID
    with pytest.raises(RuleProblem) as caught:
        rule_of(VALID.replace(old, new, 1))
    assert why in caught.value.why
    assert "own/disk-is-on-fire.toml" in str(caught.value)


def test_rule_that_does_not_fit_the_others_is_named() -> None:
    others = shipped_rules()
    taken = others.rules[0]
    text = VALID.replace('"smoke and not steam"', '"smoke and not no-such-sign"')
    found = problems_of(rule_of(text), others)
    assert found == ["`no-such-sign` is in a condition, but no signature has this id"]
    double = VALID.replace("smoke", taken.signatures[0].id)
    assert any("already a signature" in one for one in problems_of(rule_of(double), others))
    for old in ("{smoke.color|grey}", "smoke.color=white"):
        wrong = VALID.replace(old, old.replace("smoke.color", "smoke.colour"))
        assert problems_of(rule_of(wrong), others) == [
            "`smoke.colour` is used, but no signature `smoke` captures a group `colour`"
        ]
    explains = VALID.replace("why =", 'explains = ["no-such-rule"]\nwhy =')
    assert problems_of(rule_of(explains), others) == [
        "`explains` names `no-such-rule`, which is no rule"
    ]


@pytest.mark.parametrize("rule", shipped_rules().rules, ids=lambda rule: rule.id)
def test_shipped_rule_fits_the_others(rule) -> None:  # type: ignore[no-untyped-def]
    whole = shipped_rules()
    others = RuleSet(
        rules=tuple(other for other in whole.rules if other.id != rule.id), shared=whole.shared
    )
    assert problems_of(rule, others) == []
    assert (RULES_FOLDER / rule.family / f"{rule.id}.toml").is_file()
