"""The error tree, and the nearest right name."""

from __future__ import annotations

import itertools

import pytest
from click.testing import CliRunner

from flatout.cli import main
from flatout.errors import FlatoutError, RunFailed, UsageError, nearest, nearest_name
from flatout.schema.finding import finding_from


@pytest.mark.parametrize(("kind", "exit_code"), [(UsageError, 2), (RunFailed, 1)])
def test_error_when_raised(kind: type[FlatoutError], exit_code: int) -> None:
    error = kind("some-rule", "it is wrong.", because="of that", fix="do this")
    assert (
        str(error)
        == "it is wrong.\n  because: of that\n  fix: do this\n  see: flatout explain some-rule"
    )
    assert error.exit_code == exit_code
    finding = finding_from(error)
    assert (finding.rule, finding.severity, finding.because) == ("some-rule", "error", "of that")
    assert finding.fixes[0].text == "do this"


@pytest.mark.parametrize(
    ("wrong", "right", "reported"),
    [
        ("precison", ["precision", "device"], "did you mean `precision`? (all: device, precision)"),
        ("zzz", ["precision", "device"], "use one of: device, precision"),
        ("zzz", [], "there are none to choose from"),
    ],
)
def test_nearest_when(wrong: str, right: list[str], reported: str) -> None:
    assert nearest(wrong, right) == reported


COMMANDS = [name for name, _, _ in main.COMMANDS]


@pytest.mark.parametrize(
    ("wrong", "right", "near"),
    [
        ("trian", COMMANDS, "train"),
        ("shwo", COMMANDS, "show"),
        ("nwe", COMMANDS, "new"),
        ("eval", COMMANDS, "evaluate"),
        ("widht", ["width", "lr"], "width"),
        ("acuracy", ["loss", "accuracy"], "accuracy"),
        ("mine-00", ["mine-0001", "mine-0002"], "mine-0002"),
        # Words that are only as alike as any two.
        ("help", COMMANDS, None),
        ("version", COMMANDS, None),
        ("list", COMMANDS, None),
        ("lern", COMMANDS, None),
        ("nope", ["stopme"], None),
        ("nofile", ["infinite"], None),
        ("lr", ["help", "on"], None),
        ("gpu", ["use", "epochs"], None),
    ],
)
def test_a_name_is_near_only_where_it_is(wrong: str, right: list[str], near: str | None) -> None:
    assert nearest_name(wrong, right) == near


def test_names_of_other_tools_lead_to_commands_that_there_are() -> None:
    for text in main.ELSEWHERE.values():
        words = text.split()
        names = itertools.takewhile(lambda word: word.isalpha() and word.islower(), words[1:])
        done = CliRunner().invoke(main.main, [*names, "--help"])
        assert done.exit_code == 0, text


def test_many_names_are_not_all_reported() -> None:
    names = [f"run-{number:04d}" for number in range(90)]
    assert len(nearest("zzz", names)) < 500 and len(nearest("run-0007x", names)) < 500
