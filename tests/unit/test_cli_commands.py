"""What holds for every command: agreed options, exit codes, errors in one shape, JSON, colour."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from flatout.cli import main

OPTIONS = Path(__file__).resolve().parents[1] / "cases" / "cli" / "options.txt"


def commands(group: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, itself included."""
    yield words, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, f"{words} {name}")


def all_commands() -> dict[str, click.Command]:
    return dict(commands(main.main, "flatout"))


def option_lines() -> list[str]:
    lines = []
    for words, command in all_commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                context = click.Context(command)
                metavar = "" if parameter.is_flag else parameter.make_metavar(context)
                lines.append(f"{words} {' '.join(parameter.opts)} {metavar}".rstrip())
            else:
                lines.append(f"{words} {parameter.make_metavar(click.Context(command))}")
        lines.append(words)
    return sorted(lines)


def test_forget_is_for_all_recipes_and_has_a_document(cli: Any) -> None:
    recipes = cli.state / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "a.json").write_text("{}")
    done = cli.run("tune", "mlp", "--forget")
    assert done.returncode == 2 and "mlp" in done.stderr and (recipes / "a.json").exists()
    done = cli.run("tune", "--forget", "--json")
    assert json.loads(done.stdout) == {"forgotten": 1} and not (recipes / "a.json").exists()


def test_rm_without_an_answer_has_a_document(trained: Any) -> None:
    done = trained.run("runs", "rm", "mine-0001", "--json")
    assert done.returncode == 1 and json.loads(done.stdout) == {"deleted": []}
    assert (trained.runs / "mine-0001").exists()


@pytest.mark.parametrize("other", ["--json", "--follow", "--tensorboard=board"])
def test_recipe_that_is_not_shown_is_reported(trained: Any, other: str) -> None:
    done = trained.run("show", "mine-0001", "--recipe", other)
    assert "`--recipe` has no effect." in done.stderr
    assert "no effect" not in trained.run("show", "mine-0001", "--recipe").stderr


def test_options_are_those_that_were_agreed_on() -> None:
    # A new option: ask which one goes, then write it into the file.
    assert option_lines() == OPTIONS.read_text(encoding="utf-8").splitlines()


def test_every_command_prints_json() -> None:
    without = [
        words
        for words, one in all_commands().items()
        if not any("--json" in parameter.opts for parameter in one.params)
    ]
    # These print nothing of their own that a program could want.
    silent = (
        "flatout",
        "flatout bench",
        "flatout cluster",
        "flatout cluster logs",
        "flatout data",
        "flatout completion",
    )
    without = [words for words in without if words not in silent]
    assert without == []


def test_every_command_says_what_it_does() -> None:
    assert [words for words, one in all_commands().items() if not one.help] == []


def test_short_help_of_the_table_has_a_module_each() -> None:
    for name, group, text in main.COMMANDS:
        assert name in all_commands()[f"flatout {name}"].name
        assert group and text.endswith(".")


def test_bare_flatout_says_the_next_step(cli: Any) -> None:
    done = cli.run()
    assert done.returncode == 0
    shown = done.stdout
    # What it is depends on whether this environment holds torch.
    train = r"flatout train digits( --env [\w-]+)?"
    commands = rf"{train}|flatout setup torch|\S+ -m pip install torch==.*"
    assert re.search(rf"^    ({commands})$", shown, re.M)


def test_bare_flatout_when_a_run_was_stopped(cli: Any) -> None:
    if "torch is not installed" in cli.run().stdout:
        pytest.skip("needs torch's metadata in this environment: it suggests to install torch")
    cli.run(*cli.train())
    assert "    flatout show mine-0001\n" in cli.run().stdout
    events = cli.runs / "mine-0001" / "events.jsonl"
    lines = events.read_text().splitlines()
    events.write_text("\n".join(lines[:-1]) + "\n")
    assert "    flatout train --resume mine-0001\n" in cli.run().stdout


def test_version(cli: Any) -> None:
    done = cli.run("--version")
    assert (done.returncode, done.stdout) == (0, "flatout 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "rule", "hint"),
    [
        (["trian"], "unknown-command", "did you mean `train`?"),
        (["train"], "experiment-missing", "flatout train digits"),
        (["train", "digit"], "unknown-experiment", "did you mean `digits`?"),
        (["train", "digits", "-s", "lrr=1"], "unknown-parameter", "did you mean `lr`?"),
        (["train", "digits", "-s", "lr=x"], "bad-parameter-value", "give a number"),
        (["train", "digits", "--use", "precison=bf16"], "unknown-recipe-field", "`precision`"),
        (["train", "digits", "--device", "gpu"], "bad-recipe-value", "cuda:N"),
        (["train", "digits", "--python", "no/python"], "python-not-found", "give the path"),
        (["train", "digits", "--epochs", "0"], "wrong-usage", "flatout train --help"),
        (["train", "digits", "--sed", "1"], "wrong-usage", "--seed"),
        (["train", "digits", "--init", "no.safetensors"], "weights-not-found", "safetensors"),
        (["show", "nothing"], "unknown-run", "flatout train digits"),
        (["runs", "rm", "nothing"], "unknown-run", "flatout train digits"),
        (["compare", "one"], "too-few-runs", "flatout runs"),
        (["data", "get", "mnits"], "unknown-data-set", "did you mean `mnist`?"),
        (["help"], "unknown-command", "fix: flatout --help\n"),
        (["version"], "unknown-command", "fix: flatout --version\n"),
        (["list"], "unknown-command", "fix: flatout runs\n"),
        (["completions"], "unknown-command", "did you mean `completion`?"),
        (["lern"], "unknown-command", "use one of: "),
        (["train", "digits", "--gpu", "0"], "wrong-usage", "fix: flatout train digits --help\n"),
        (
            ["launch", "x.py", "--framework", "torch", "--nodes", "2"],
            "wrong-usage",
            "put it before the script: flatout launch --framework ... SCRIPT",
        ),
        (["launch", "--nodes", "2", "x.py"], "wrong-usage", "flatout launch --help"),
    ],
)
def test_wrong_use_is_reported_in_one_shape(
    cli: Any, arguments: list[str], rule: str, hint: str
) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert f"explain {rule}\n" in done.stderr
    assert "  fix: " in done.stderr and hint in done.stderr
    assert "Traceback" not in done.stderr
    # Nothing is left behind by what could not be begun.
    assert not cli.runs.exists()


def test_wrong_use_with_json_is_a_document_too(cli: Any) -> None:
    done = cli.run("train", "digit", "--json")
    assert json.loads(done.stdout)["error"]["rule"] == "unknown-experiment"


def test_own_fault_is_kept_in_a_file(cli: Any) -> None:
    script = (
        "import sys, types, click; import flatout.cli.main as main\n"
        "module = types.ModuleType('boom'); module.command = click.command()(lambda: 1 / 0)\n"
        "sys.modules['flatout.cli.commands.boom'] = module\n"
        "main.COMMANDS += (('boom', 'Train', 'Divides by zero.'),)\n"
        "sys.exit(main.run(['boom']))"
    )
    src = str(Path(main.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": src, "FLATOUT_STATE": str(cli.state)},
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    (kept,) = (cli.state / "crashes").iterdir()
    assert str(kept) in done.stderr
    assert "ZeroDivisionError" in kept.read_text()


def test_runs_rm_asks_first(trained: Any) -> None:
    refused = trained.run("runs", "rm", "last")
    assert refused.returncode == 1
    assert (trained.runs / "mine-0001").exists()
    done = trained.run("runs", "rm", "last", "--yes", "--json")
    assert json.loads(done.stdout) == {"deleted": ["mine-0001"]}
    assert not (trained.runs / "mine-0001").exists()


def test_runs_when_one_is_damaged(trained: Any) -> None:
    bad = trained.runs / "bad"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    listed = trained.run("runs")
    assert listed.returncode == 0
    assert re.search(r"mine-0001 +mine +finished", listed.stdout)
    assert re.search(r"bad +unreadable", listed.stdout)
    assert "remove it: flatout runs rm bad" in listed.stderr
    document = json.loads(trained.run("runs", "--json").stdout)
    assert [run["status"] for run in document] == ["finished", "unreadable"]
    # Neither stands in the way of the next step, nor of being removed.
    assert "explain damaged-file" in trained.run("show", "bad").stderr
    assert trained.run().returncode == 0
    assert trained.run("runs", "rm", "bad", "--yes").returncode == 0
    assert not bad.exists()


def test_runs_rm_when_a_folder_is_named(trained: Any) -> None:
    elsewhere = trained.folder / "mine-0001"
    shutil.copytree(trained.runs / "mine-0001", elsewhere)
    assert trained.run("runs", "rm", str(elsewhere), "--yes").returncode == 0
    assert not elsewhere.exists()
    assert (trained.runs / "mine-0001").exists()


def test_show_with_json_gives_every_line(trained: Any) -> None:
    document = json.loads(trained.run("show", "last", "--json").stdout)
    assert set(document) == {"run", "checkpoints", "results", "metrics"}
    assert document["results"] == {"classes": [], "samples": None}
    kinds = [line["kind"] for line in document["metrics"]]
    assert kinds.count("progress") == 6 and kinds.count("validated") == 3


def test_show_tells_the_results_of_the_best_validation(cli: Any) -> None:
    cli.run(*cli.train(mode="classify"))
    shown = cli.run("show", "last").stdout
    assert "animals (14 images, step 6)" in shown
    assert re.search(r"cat +7 +100.0 % +85.7 % +92.3 %", shown)
    assert re.search(r"cat +6 +1\n +dog +\. +7\n", shown)
    assert "samples (step 6)\n  written at step 6\n" in shown
    results = json.loads(cli.run("show", "last", "--json").stdout)["results"]
    assert results["classes"][0]["classes"][1]["recall"] == 1.0
    assert results["samples"]["texts"] == ["written at step 6"]


def test_commands_are_reported_as_they_can_be_typed(trained: Any) -> None:
    reported = trained.run("show", "last", PATH="").stdout
    assert " flatout train" not in reported
    assert re.search(r"\S*(/flatout|\\flatout.exe| -m flatout) train --resume mine-0001", reported)


def test_runs_and_compare_as_tables_and_as_json(cli: Any) -> None:
    cli.run(*cli.train(lr=0.1))
    cli.run(*cli.train("--seed", "3", lr=0.2))
    table = cli.run("runs").stdout
    assert re.search(r"mine-0002 +mine +finished +3/3 +accuracy 83.3 %", table)
    assert [run["header"]["id"] for run in json.loads(cli.run("runs", "--json").stdout)] == [
        "mine-0001", "mine-0002",
    ]  # fmt: skip
    compared = cli.run("compare", "mine-0001", "last").stdout
    assert re.search(r"lr +0.1 +0.2", compared)
    assert re.search(r"seed +0 +3", compared)
    assert "precision" not in compared
    document = json.loads(cli.run("compare", "mine-0001", "last", "--json").stdout)
    assert document["runs"] == ["mine-0001", "mine-0002"]


def test_data_list_as_text_and_as_json(cli: Any) -> None:
    folder = cli.folder / "data" / "tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text("To be")
    place = {"FLATOUT_DATA": str(folder.parent), "XDG_DATA_HOME": str(cli.folder / "none")}
    listed = cli.run("data", "list", **place).stdout
    assert "flatout data get mnist" in listed
    # One column for all, however long a name is.
    lines = listed.splitlines()
    (label,) = re.findall(r"^tinyshakespeare +", listed, re.M)
    width = len(label)
    assert all(line[width - 1] == " " != line[width] for line in lines)
    document = json.loads(cli.run("data", "list", "--json", **place).stdout)
    found = {one["name"]: one for one in document}
    assert found["tinyshakespeare"]["folder"] == str(folder)
    damaged = cli.run("data", "verify", **place)
    assert damaged.returncode == 1
    assert "explain damaged-data" in damaged.stderr


@pytest.mark.parametrize(
    ("more", "is_coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
     ({"FORCE_COLOR": "1", "TERM": "dumb"}, False), ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True)],
)  # fmt: skip
def test_colour_when_it_is_wanted(cli: Any, more: dict[str, str], is_coloured: bool) -> None:
    done = cli.run("trian", **{"TERM": "xterm-256color", **more})
    assert ("\x1b[" in done.stderr) is is_coloured
