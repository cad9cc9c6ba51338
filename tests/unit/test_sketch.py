"""What `flatout new` writes: for every task and kind of data, with and without a path."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from flatout.cli.commands import new
from flatout.cli.flows.new_experiment import answered, settled_name
from flatout.errors import UsageError
from flatout.runs.experiment_params import parse_parameters, parse_settings
from flatout.runs.model.new_experiment import (
    CONTENT_OF,
    DATA_OF,
    TABLES,
    TASKS,
    NewExperiment,
    NewExperimentRequest,
    check_name,
)
from flatout.runs.scaffold.write import written
from flatout.schema.ingest_protocol import FORMAT, Settings, ShardColumn, ShardManifest

PARAMETERS = {"lr", "width", "batch_size", "steps"}


def sketches() -> Iterator[NewExperiment]:
    """Every combination that can be written."""
    for task, kinds in DATA_OF.items():
        for kind in kinds:
            for path in (None, 'my $data/it\'s "here"', "/elsewhere/\\odd"):
                if kind == "synthetic" and path:
                    continue
                made = NewExperiment(
                    name="mine",
                    task=task,
                    data=kind,
                    path=path,
                    is_path_beside=path is not None and path.startswith("my"),
                )
                inside = [one for one, content in CONTENT_OF.items() if content in kinds]
                inside = [one for one in inside if (task, one) != ("regression", "idx")]
                for ingested in inside if kind == "shards" and path else [None]:
                    sketch = msgspec.structs.replace(made, ingested=ingested)
                    is_table = sketch.content in TABLES and path
                    target = 'the "price" in $' if is_table else None
                    yield msgspec.structs.replace(sketch, target=target)


def described(sketch: NewExperiment) -> str:
    place = "beside" if sketch.is_path_beside else "made-up" if sketch.is_made_up else "elsewhere"
    return f"{sketch.task}-{sketch.data}-{sketch.ingested or ''}-{place}"


@pytest.mark.parametrize("sketch", list(sketches()), ids=described)
def test_written_experiment_can_be_parsed(sketch: NewExperiment) -> None:
    text = written(sketch)
    parameters = parse_parameters(text, "mine.py")
    assert {one.name for one in parameters} >= PARAMETERS
    assert parse_settings(parameters, ["lr=1e-3", "steps=7"]) == {"lr": 1e-3, "steps": 7}
    assert "$" not in text.replace("my $data", "").replace("in $", "")
    # Short enough to be read whole before it is changed.
    assert len(text.splitlines()) < 150


def test_written_experiments_pass_ruff(tmp_path: Path) -> None:
    for number, sketch in enumerate(sketches()):
        (tmp_path / f"mine_{number}.py").write_text(written(sketch), encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--select", "E,F,W,I,UP,B,SIM,C4,PIE", "--line-length", "88"]
    for arguments in (["check", "--isolated", *rules, "."], ["format", "--isolated", "--check"]):
        done = subprocess.run(
            [*ruff, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_written_paths_and_columns_are_those_that_were_given() -> None:
    sketch = next(one for one in sketches() if one.target and one.is_path_beside)
    values = [
        node.value
        for node in ast.walk(ast.parse(written(sketch)))
        if isinstance(node, ast.Constant)
    ]
    assert {sketch.path, sketch.target} <= set(values)


def test_options_are_those_of_the_templates() -> None:
    # --help does not load the templates' table.
    assert set(new._TASKS) == set(TASKS)
    assert set(new._DATA) == {kind for kinds in DATA_OF.values() for kind in kinds}


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("two words", "imported by its name"),
        ("3d", "imported by its name"),
        ("a/b", "imported by its name"),
        ("class", "reserved word in Python"),
        ("CON", "Windows"),
        ("com1.py", "Windows"),
        ("random", "would hide the module"),
        ("torch", "would hide the module"),
        ("pandas", "would hide the module"),
    ],
)
def test_name_is_refused_when_it_cannot_be_a_module(name: str, because: str) -> None:
    with pytest.raises(UsageError) as error:
        check_name(name)
    assert error.value.rule == "bad-experiment-name"
    assert because in str(error.value.because)


def test_name_may_be_given_with_its_ending() -> None:
    assert check_name("flowers.py") == "flowers"


@pytest.mark.parametrize(
    ("said", "settled"),
    [
        ({}, ("classification", "synthetic")),
        ({"path": "a/b.CSV"}, ("classification", "csv")),
        ({"path": "book.txt"}, ("language-model", "text")),
        ({"data": "text"}, ("language-model", "text")),
        ({"path": "photos"}, ("classification", "images")),
        ({"path": "reviews", "task": "regression"}, ("regression", "huggingface")),
        ({"path": "x.txt", "data": "huggingface"}, ("classification", "huggingface")),
    ],
)
def test_defaults_follow_what_was_said(said: dict[str, str], settled: tuple[str, str]) -> None:
    request = NewExperimentRequest(name="mine", **said)
    assert (request.settled_task, request.settled_data) == settled


@pytest.mark.parametrize(
    ("said", "typed", "answers"),
    [
        # Enter, Enter: what stands in brackets.
        ({}, "\n\n", ("classification", "synthetic", None, None)),
        (
            {},
            "regression\ncsv\n'my table.csv'\nprice\n",
            ("regression", "csv", "my table.csv", "price"),
        ),
        # What was given is not asked, and a mistyped answer is asked again.
        ({"task": "language-model"}, "txet\ntext\n\n", ("language-model", "text", None, None)),
        ({"path": "a.csv"}, "\n\n\n", ("classification", "csv", "a.csv", None)),
    ],
)
def test_questions_complete_what_was_said(
    said: dict[str, str], typed: str, answers: tuple[str | None, ...]
) -> None:
    with CliRunner().isolation(input=typed) as (stdout, *_):
        given = NewExperimentRequest(name="mine", **said)
        request = answered(given, given.settled_task)
        sys.stdout.flush()
        # Standard output is for what a program may read.
        assert stdout.getvalue() == b""
    assert (request.task, request.data, request.path, request.target) == answers


def test_new_writes_a_file_and_says_what_to_type(cli: Any) -> None:
    done = cli.run("new", "flowers")
    assert done.returncode == 0
    assert done.stdout.endswith("\n    flatout train flowers.py\n\n")
    assert (cli.folder / "flowers.py").read_text(encoding="utf-8").startswith('"""flowers')


def test_new_when_the_file_is_there(cli: Any) -> None:
    file = cli.folder / "flowers.py"
    file.write_text("mine = 1\n")
    done = cli.run("new", "flowers")
    assert done.returncode == 2 and "explain file-exists\n" in done.stderr
    assert file.read_text() == "mine = 1\n"
    assert cli.run("new", "flowers", "--force").returncode == 0
    assert "def experiment(" in file.read_text()


def test_new_takes_the_last_column_of_a_csv_file(cli: Any) -> None:
    (cli.folder / "houses.csv").write_text("rooms,price\n3,250\n")
    done = cli.run("new", "houses", "--path", "houses.csv", "--task", "regression", "--json")
    assert json.loads(done.stdout)["experiment"] == {
        "name": "houses", "task": "regression", "data": "csv", "path": "houses.csv",
        "is_path_beside": True, "target": "price", "ingested": None, "held_out": "validation",
    }  # fmt: skip
    shown = cli.run("new", "homes", "--path", "houses.csv", "--task", "regression").stdout
    assert "learns      regression, from csv in houses.csv; target: price\n" in shown


@pytest.mark.parametrize(
    ("column", "said", "task"),
    [
        (["1.5", "2", ""], [], "regression"),
        ([str(number) for number in range(200)], [], "regression"),
        (["0", "1", "2.0"], [], "classification"),
        (["0", "1", *["nan"] * 200], [], "classification"),
        (["yes", "1.5"], [], "classification"),
        (["1.5", "2.5"], ["--task", "classification"], "classification"),
        (["1.5", "2.5"], ["--target", "rooms"], "classification"),
        ([], [], "classification"),
    ],
)
def test_new_learns_a_number_where_the_column_holds_no_classes(
    cli: Any, column: list[str], said: list[str], task: str
) -> None:
    rows = "".join(f"3,{value}\n" for value in column)
    (cli.folder / "houses.csv").write_text(f"rooms,price\n{rows}")
    done = cli.run("new", "houses", "--path", "houses.csv", *said, "--json")
    assert json.loads(done.stdout)["experiment"]["task"] == task


def write_shards(folder: Path, settings: Settings, **counts: int) -> None:
    manifest = ShardManifest(
        format=FORMAT, settings=settings, num_rejected=0, source="", versions={}, shards=(),
        counts={"train": 9, "validation": 0, "test": 0, **counts},  # type: ignore[dict-item]
    )  # fmt: skip
    folder.mkdir()
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def test_new_knows_a_folder_of_shards(cli: Any) -> None:
    columns = tuple(ShardColumn(name=name, type="double") for name in ("rooms", "price"))
    settings = Settings(kind="csv", validation=0.0, test=0.1, columns=columns)
    write_shards(cli.folder / "houses-shards", settings, test=1)
    done = cli.run("new", "houses", "--path", "houses-shards", "--task", "regression", "--json")
    made = json.loads(done.stdout)["experiment"]
    assert (made["data"], made["ingested"], made["target"]) == ("shards", "csv", "price")
    # There is no part for validation; what is trained on is not taken for it.
    text = (cli.folder / "houses.py").read_text()
    assert 'PARTS = ("train", "test")' in text and "houses-shards" in text
    wrong = cli.run("new", "more", "--path", "houses-shards", "--target", "prise")
    assert wrong.returncode == 2 and "`price`" in wrong.stderr
    write_shards(cli.folder / "book", Settings(kind="text", validation=0.0, test=0.0))
    alone = cli.run("new", "more", "--path", "book")
    assert alone.returncode == 2 and "explain no-data" in alone.stderr
    other = cli.run("new", "more", "--path", "book", "--task", "regression")
    assert "explain data-for-another-task" in other.stderr
    none = cli.run("new", "more", "--data", "shards", "--path", ".")
    assert none.returncode == 2 and "explain no-shards" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "rule", "hint"),
    [
        (["--path", "hauses.csv"], "data-path-not-found", "did you mean `houses.csv`?"),
        (["--path", "houses.csv", "--target", "prise"], "column-not-found", "`price`"),
        (["--path", "empty.csv"], "table-not-readable", "first line"),
        (["--path", "latin.csv"], "table-not-readable", "UTF-8"),
        (["--task", "regression", "--data", "images"], "data-for-another-task", "csv"),
        (["--data", "pictures"], "wrong-usage", "flatout new --help"),
    ],
)
def test_new_when_used_wrongly(cli: Any, arguments: list[str], rule: str, hint: str) -> None:
    (cli.folder / "houses.csv").write_text("rooms,price\n3,250\n")
    (cli.folder / "empty.csv").write_text("")
    (cli.folder / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    done = cli.run("new", "houses", *arguments)
    assert done.returncode == 2
    assert f"explain {rule}\n" in done.stderr and hint in done.stderr
    assert not (cli.folder / "houses.py").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--target", "price"], ["--data", "csv", "--target", "price"],
     ["--data", "synthetic", "--path", "houses.csv"]],
)  # fmt: skip
def test_new_warns_of_what_has_no_effect(cli: Any, arguments: list[str]) -> None:
    done = cli.run("new", "houses", *arguments)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ") and "option-without-effect" in done.stderr


@pytest.mark.parametrize("name", ["msgspec", "parcel", "__main__"])
def test_new_refuses_the_name_of_a_module_that_is_elsewhere(cli: Any, name: str) -> None:
    (cli.folder / "parcel").mkdir()
    (cli.folder / "parcel" / "__init__.py").write_text("")
    done = cli.run("new", name)
    assert done.returncode == 2 and "explain bad-experiment-name\n" in done.stderr
    assert not (cli.folder / f"{name}.py").exists()


def test_new_may_take_the_name_of_a_folder_or_file_beside_it(cli: Any) -> None:
    (cli.folder / "flowers").mkdir()
    assert cli.run("new", "flowers").returncode == 0
    assert cli.run("new", "flowers", "--force").returncode == 0


@pytest.mark.parametrize(
    ("given", "proposed"),
    [("my-net", "my_net"), ("two words.py", "two_words"), ("3d", "net_3d"), ("random", "my_random"),
     ("class", "my_class"), ("a/b", "a_b"), ("-", "my_")],
)  # fmt: skip
def test_a_name_that_cannot_be_gets_a_proposal_that_can(given: str, proposed: str) -> None:
    with pytest.raises(UsageError) as error:
        check_name(given)
    assert error.value.fix == f"use another name: flatout new {proposed}"
    assert check_name(proposed) == proposed


def test_a_person_is_asked_for_another_name() -> None:
    with CliRunner().isolation(input="\nother\n"):
        assert settled_name("my-net") == "my_net"
        assert settled_name("my-net") == "other"
        assert settled_name("flowers") == "flowers"
