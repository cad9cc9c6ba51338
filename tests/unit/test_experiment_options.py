"""An experiment's parameters as options of the commands that take it, and in their --help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.runs.experiment_params import parse_parameters

SOURCE = '''
from typing import Literal
BIG = 64

def experiment(
    lr: float = 1e-3,  # size of a step
    # How wide it is,
    # in units.
    width: int = BIG,
    act: Literal["relu", "gelu"] = "relu",  # noqa: E501
    is_deep: bool = False,
    seed: int = 3,
    layers: list[int] = [1, 2],
    tag: str | None = None,
    *, data: str,
):
    """A network.

    Args:
        act (str): what follows each layer;
            of these two.
        data, tag: read from here, and called so.

    Returns:
        An experiment.
    """
    raise SystemExit("somebody ran this file")
'''


@pytest.fixture
def typed(cli: Any) -> Any:
    """A command line beside an experiment with parameters of every kind."""
    (cli.folder / "typed.py").write_text(SOURCE)
    return cli


def test_docs_of_parameters_come_from_docstring_and_comments() -> None:
    found = {one.name: one.doc for one in parse_parameters(SOURCE, "typed.py")}
    assert found == {
        "lr": "size of a step", "width": "How wide it is, in units.",
        "act": "what follows each layer; of these two.", "is_deep": None, "seed": None,
        "layers": None, "tag": "read from here, and called so.",
        "data": "read from here, and called so.",
    }  # fmt: skip
    values = {one.name: one.default_value for one in parse_parameters(SOURCE, "typed.py")}
    assert values["lr"] == 1e-3 and values["width"] == "BIG" and values["layers"] == "[1, 2]"


@pytest.mark.parametrize("command", ["train", "tune"])
def test_help_lists_the_parameters(typed: Any, command: str) -> None:
    shown = typed.run(command, "typed.py", "--help").stdout
    _, _, reported = shown.partition("Parameters of typed.py:\n")
    lines = " ".join(reported.split())
    assert "--lr FLOAT size of a step [default: 0.001]" in lines
    assert "--width INT How wide it is, in units. [default: BIG]" in lines
    assert "--act relu|gelu what follows each layer; of these two." in lines
    assert "--is-deep / --no-is-deep [default: False]" in lines
    assert "--tag TEXT|none" in lines and "--data TEXT" in lines and "[required]" in lines
    assert "layers [default: [1, 2]; is a list[int]: set it in the file]" in lines
    # Nothing is said twice, and the command's own options come first.
    assert shown.count("--lr ") == 1 and shown.index("--device") < shown.index("--lr ")
    if command == "train":
        assert "-s seed=INT [default: 3; only with -s: the command has an option" in lines


def test_help_of_a_built_in_and_without_an_experiment(cli: Any) -> None:
    shown = cli.run("train", "digits", "--help").stdout
    assert "Parameters of digits:" in shown and "channels of the first convolution" in shown
    assert "Parameters of" not in cli.run("train", "--help").stdout
    # An experiment that cannot be read leaves the command's own help.
    (cli.folder / "broken.py").write_text("def experiment(:")
    assert "--device" in cli.run("train", "broken.py", "--help").stdout


def test_help_of_evaluate_lists_those_of_the_run(trained: Any) -> None:
    shown = trained.run("evaluate", "mine-0001", "--help").stdout
    assert "Parameters of mine-0001:" in shown and "--pause FLOAT" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--lr", "0.1", "--mode", "warn"],
        ["--lr=0.1", "--mode=warn"],
        ["-s", "lr=0.1", "--mode", "warn"],
    ],
)
def test_parameters_are_options(cli: Any, words: list[str]) -> None:
    file, *rest = cli.train()[1:]
    for line in (["train", file, *words, *rest], ["train", *words, *rest, file]):
        done = cli.run(*line, "--json")
        assert done.returncode == 0, done.stderr
        spec = json.loads(done.stdout)["run"]["header"]["spec"]
        assert spec["parameters"] == {"lr": 0.1, "mode": "warn"}


def test_an_option_of_the_command_wins(cli: Any) -> None:
    (cli.folder / "own.py").write_text("def experiment(seed: int = 3, wide: bool = True): ...")
    words = ["train", "own.py", "--python", cli.python, "--seed", "5", "--no-wide", "--json"]
    spec = json.loads(cli.run(*words).stdout)["run"]["header"]["spec"]
    assert (spec["seed"], spec["parameters"]) == (5, {"wide": False})
    spec = json.loads(cli.run(*words[:4], "-s", "seed=7", "--wide", "--json").stdout)["run"]
    assert spec["header"]["spec"]["parameters"] == {"seed": 7, "wide": True}


@pytest.mark.parametrize(
    ("words", "rule", "hint"),
    [
        (["--lr", "fast"], "bad-parameter-value", "give a number"),
        (["--act", "tanh", "--data", "x"], "bad-parameter-value", "give one of: relu, gelu"),
        (["--lrr", "1"], "wrong-usage", "did you mean `--lr`?"),
        (["--sed", "1"], "wrong-usage", "did you mean `--seed`?"),
        (["--lr", "1", "-s", "lr=2"], "set-twice", "give it once"),
        (["--lr", "1"], "parameter-missing", "-s data=..."),
        (["--layers", "1"], "wrong-usage", "flatout train typed.py --help"),
        # As alike as `--use`, but for the dashes that all options share.
        (["--gpus", "1"], "wrong-usage", "flatout train typed.py --help"),
    ],
)
def test_a_wrong_parameter_says_what_there_is(
    typed: Any, words: list[str], rule: str, hint: str
) -> None:
    done = typed.run("train", "typed.py", *words)
    assert done.returncode == 2
    assert f"explain {rule}\n" in done.stderr
    assert hint in done.stderr


def test_a_broken_experiment_is_reported_before_its_options(cli: Any) -> None:
    (cli.folder / "broken.py").write_text("def experiment(:")
    done = cli.run("train", "broken.py", "--lr", "1")
    assert "explain experiment-syntax-error" in done.stderr
    assert "explain unknown-experiment" in cli.run("train", "digts", "--lr", "1").stderr


def test_every_built_in_documents_its_parameters() -> None:
    from flatout.runs import experiment_source, listing

    for name in experiment_source.built_in_names():
        missing = [one.name for one in listing.parameters_of(name) if not one.doc]
        assert missing == [], name


def test_the_folder_of_a_cluster_is_named_alike(cli: Any) -> None:
    here = Path(cli.folder / "here")
    assert cli.run("cluster", "init", "here", "--engine", "dask").returncode == 0
    assert here.is_dir()
    assert cli.run("cluster", "init", "--in", "there", "--engine", "dask").returncode == 0
    for words in (["check"], ["status"], ["up"], ["stop"], ["down"], ["scale", "2"]):
        for place in (["nowhere"], ["--in", "nowhere"]):
            done = cli.run("cluster", *words, *place)
            assert "explain no-cluster-here" in done.stderr, words
        twice = cli.run("cluster", *words, "here", "--in", "there")
        assert "the folder is given twice" in twice.stderr


def test_follow_shows_the_recipe_once(trained: Any) -> None:
    shown = trained.run("show", "mine-0001", "--follow").stdout
    assert shown.count("recipe      ") == 1
