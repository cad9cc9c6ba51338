"""The catalogues of `flatout web`: complete, and used."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import get_args

import pytest

from flatout.schema import change_journal, run_lines
from flatout.schema.bench_comparison import ComparisonVerdict, Group
from flatout.schema.recipe import Origin
from flatout.schema.run import Status
from flatout.schema.step_profile import PART_NAMES
from flatout.schema.sweep import Direction, TrialStatus
from flatout.web.texts import LANGUAGES, chosen_language, texts_in

WEB = Path(__file__).parents[2] / "src" / "flatout" / "web"
TEMPLATES = {path.name: path.read_text(encoding="utf-8") for path in WEB.glob("templates/*.html")}
KEYS = texts_in("en")._texts
# Whose keys are names of ours, by `named`.
GROUPS = ("severity", "status", "disk", "compared", "origin", "split", "event", "panel", "line",
          "plan_row", "plan_step", "changed", "alarm", "verdict", "bench_group",
          "profile_part", "health", "direction")  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_catalogue_is_complete(language: str) -> None:
    texts = texts_in(language)._texts
    assert texts.keys() == KEYS.keys()
    assert all(text.strip() for text in texts.values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_are_the_same(language: str) -> None:
    def fields(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text)} - {None}

    texts = texts_in(language)._texts
    assert {key: fields(text) for key, text in texts.items()} == {
        key: fields(text) for key, text in KEYS.items()
    }


def used_keys() -> set[str]:
    """Keys that templates name; those made of two parts end in a dot."""
    text = "".join(TEMPLATES.values())
    used = set(re.findall(r'\bt\("([\w.]+)"', text))
    for key in re.findall(r'\bcounted\("([\w.]+)"', text):
        used |= {f"{key}.one", f"{key}.other"}
    return used


def test_every_text_is_used_and_exists() -> None:
    groups = set(re.findall(r'\bnamed\("(\w+)"', "".join(TEMPLATES.values())))
    assert groups == set(GROUPS)
    # "run." and "command." are completed by the template.
    made = {"run.", "command."}
    named = {key for key in KEYS if key.partition(".")[0] in (*GROUPS, "command", "language")}
    parts = {f"run.{name}" for name in ("time", "events", "checkpoints", "log")}
    assert used_keys() - made - KEYS.keys() == set()
    assert KEYS.keys() - used_keys() - named - parts == set()


def test_no_text_is_in_a_template() -> None:
    for name, template in TEMPLATES.items():
        bare = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", " ", template, flags=re.DOTALL)
        bare = re.sub(r"\{\{.*?\}\}", " ", bare)
        words = set(re.findall(r"[A-Za-z]{3,}", bare))
        words -= {"flatout", "CPU", "GPU", "WSL", "CUDA", "torch", "seed", "doctor", "train",
                  "monitor", "digits"}  # fmt: skip
        assert not words, name


# The tag before a text of flatout's own, which is in English in every language.
SAID = re.compile(
    r"<([^<>]*)>[^<>]*\{\{ [\w.]+\.(?:problem|because|reason|ending_reason|why|goal)\b[^(}]*\}\}"
)


def test_english_texts_are_marked() -> None:
    unmarked = {
        name: [tag for tag in SAID.findall(template) if 'lang="en"' not in tag]
        for name, template in TEMPLATES.items()
    }
    assert {name: tags for name, tags in unmarked.items() if tags} == {}
    assert SAID.findall("<p>{{ one.because }}</p><p>{{ english(one.because) }}</p>") == ["p"]


def test_names_of_ours_have_texts() -> None:
    kinds = [kind.__struct_config__.tag for kind in get_args(run_lines.Event)]
    assert [kind for kind in kinds if f"event.{kind}" not in KEYS] == []
    assert [name for name in get_args(Status) if f"status.{name}" not in KEYS] == []
    assert [name for name in get_args(Origin) if f"origin.{name}" not in KEYS] == []
    hows, changes = get_args(change_journal.How), get_args(change_journal.Status)
    assert [name for name in hows if f"plan_step.{name}" not in KEYS] == []
    assert [name for name in changes if f"changed.{name}" not in KEYS] == []
    assert [name for name in get_args(ComparisonVerdict) if f"verdict.{name}" not in KEYS] == []
    assert [name for name in get_args(TrialStatus) if f"status.{name}" not in KEYS] == []
    assert [name for name in get_args(Direction) if f"direction.{name}" not in KEYS] == []
    assert [name for name in get_args(Group) if f"bench_group.{name}" not in KEYS] == []


@pytest.mark.parametrize(
    ("kept", "accepted", "language"),
    [
        (None, "", "en"), (None, "es-MX,es;q=0.9,en;q=0.8", "es"), (None, "zh-CN", "zh"),
        (None, "fr,de;q=0.9", "en"), (None, "en;q=0.2, zh;q=0.7", "zh"), ("zh", "es", "zh"),
        ("xx", "es", "es"), (None, "es;q=oops,zh", "zh"), (None, ",;;=", "en"),
    ],
)  # fmt: skip
def test_language_is_chosen_by(kept: str | None, accepted: str, language: str) -> None:
    assert chosen_language(kept, accepted) == language


def test_names_that_are_not_ours_stay() -> None:
    assert texts_in("es").named("panel", "my_metric") == "my_metric"
    assert texts_in("es").counted("runs.found", 1200) == "1,200 ejecuciones"


def test_parts_of_a_step_are_called_as_in_the_terminal() -> None:
    assert {name: KEYS[f"profile_part.{name}"] for name in PART_NAMES} == PART_NAMES
