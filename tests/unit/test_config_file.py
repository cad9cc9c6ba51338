"""`--config FILE.toml`: what it sets, what wins over it, and what is wrong in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.cli.commands import train
from flatout.errors import UsageError
from flatout.system.config_file import ConfigFile

TEXT = """
epochs = 2
name = "tidy"
on_oom = "stop"

[set]
steps = 4
pause = 0.01

[use]
precision = "bf16"
"""


def header(cli: Any, run: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((cli.runs / run / "run.json").read_text())
    return document


def written(cli: Any, text: str) -> str:
    (cli.folder / "mine.toml").write_text(text, encoding="utf-8")
    return "mine.toml"


def test_config_sets_options_parameters_and_fields(cli: Any) -> None:
    done = cli.run(*cli.train("--config", written(cli, TEXT)))
    assert done.returncode == 0, done.stderr
    spec = header(cli, "tidy")["spec"]
    assert spec["epochs"] == 2
    assert spec["parameters"] == {"steps": 4, "pause": 0.01}
    assert spec["fixed"] == {"precision": "bf16", "out_of_memory": "stop"}


def test_config_gives_way_to_what_is_typed(cli: Any) -> None:
    words = ("--config", written(cli, TEXT), "--steps", "6", "--name", "typed", "--pause", "0.02",
             "--use", "precision=fp32", "--on-oom", "auto")  # fmt: skip
    done = cli.run(*cli.train(*words, steps=5))
    assert done.returncode == 0, done.stderr
    made = header(cli, "typed")
    assert made["spec"]["epochs"] is None and made["spec"]["steps"] == 6
    assert made["spec"]["parameters"] == {"steps": 5, "pause": 0.02}
    assert made["spec"]["fixed"] == {"precision": "fp32", "out_of_memory": "auto"}
    assert made["config"]["values"] == {}


def test_config_gives_way_to_a_field_that_is_typed(cli: Any) -> None:
    name = written(cli, "device = 'cuda'\non_oom = 'stop'\nepochs = 1\n")
    words = ("--use", "device=cpu", "--use", "out_of_memory=auto", "--name", "fields")
    done = cli.run(*cli.train("--config", name, *words))
    assert done.returncode == 0, done.stderr
    made = header(cli, "fields")
    assert made["spec"]["fixed"] == {"device": "cpu", "out_of_memory": "auto"}
    assert made["config"]["values"] == {"epochs": "1"}


def test_config_keeps_no_password(cli: Any) -> None:
    name = written(cli, "\ufefftrack = ['mlflow:http://ann:secret@host?token=secret']\n")
    context = train.command.make_context("train", ["x", "--config", str(cli.folder / name)])
    assert context.params["config"].values == {"track": "mlflow:http://ann:****@host?token=****"}


def test_config_names_the_experiment_and_is_kept_and_shown(cli: Any) -> None:
    name = written(
        cli,
        f"experiment = 'mine.py'\npython = {json.dumps(cli.python)}\n"
        "track = ['none']\n[set]\nsteps = 2\n",
    )
    done = cli.run("train", "--config", name, "--pause", "0.01")
    assert done.returncode == 0, done.stderr
    assert header(cli, "mine-0001")["config"]["values"]["set.steps"] == "2"
    shown = cli.run("show", "mine-0001").stdout
    assert "config" in shown and "mine.toml: experiment=mine.py" in shown
    assert "set.steps=2" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs = [", "is not valid TOML"),
        ("\nepoch = 3", "mine.toml, line 2: `epoch` is not an option of `flatout train`"),
        ("epochs = 0", "line 1: `epochs`: "),
        ("epochs = 1.5", "line 1: `epochs`: "),
        ("tune = 'ful'", "line 1: `tune`: "),
        ("detach = 1", "needs `true` or `false`"),
        ("epochs = [1]", "needs a single value"),
        ("name = true", "needs a single value"),
        ("set = 1", "`set` is a table"),
        ("[set]\nstep = 3", "line 2: `step` is not a parameter of the experiment"),
        ("[set]\nsteps = [1]", "line 2: `steps` needs a single value"),
        ("[use]\nprecison = 'bf16'", "line 2: `precison` is not a field of the recipe"),
        ("[sett]\nx = 1", "line 1: `sett` is not an option"),
        ("\nset.step = 3", "line 2: `step` is not a parameter of the experiment"),
        ("\nset = { step = 3 }", "line 2: `step` is not a parameter of the experiment"),
        ("on-oom = 'stop'\non_oom = 'stop'", "`on-oom` is set twice"),
    ],
)
def test_config_when_something_is_wrong_in_it(cli: Any, text: str, said: str) -> None:
    done = cli.run(*cli.train("--config", written(cli, text)))
    assert done.returncode == 2, done.stdout
    assert said in done.stderr and "see: flatout explain bad-config" in done.stderr
    assert not cli.runs.exists()


def test_config_that_is_not_there_or_names_two_lengths(cli: Any) -> None:
    assert "nowhere.toml" in cli.run(*cli.train("--config", "nowhere.toml")).stderr
    done = cli.run(*cli.train("--config", written(cli, "epochs = 1\nsteps = 1")))
    assert "`--epochs` cannot be combined with `--steps`" in done.stderr


def test_lines_of_keys_are_found_below_tables_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("# x = 1\n'x' = 2\n[use]\nx = 1\n[set]\n  x = 3\n")
    config = ConfigFile(path)
    places = [config.place("x", table) for table in ("", "use", "set")]
    assert [place.partition(", ")[2] for place in places] == ["line 2", "line 4", "line 6"]
    with pytest.raises(UsageError, match="is not an option"):
        config.check_names(config.options, ["y"], "an option")
