"""Runs in a list: what is shown of them, how they are chosen and sorted, and how wide that is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.cli.render import show_runs
from flatout.errors import UsageError
from flatout.runs.model.comparison import compare_runs
from flatout.runs.model.listed import ListedRun, ListRequest, chosen_runs
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import DamagedRun, Run, RunHeader
from flatout.schema.run_lines import Started, Validated
from flatout.system.store.run_folder import RunFolder

SRC = str(Path(show_runs.__file__).parents[3])
START = f"import sys; sys.path.insert(0, {SRC!r}); import flatout.__main__ as m; m.main()"
STARTED = Started(
    at=1.0, step=0, pid=1, num_steps=40, num_epochs=10, steps_per_epoch=4, num_parameters=3,
    num_samples=40,
)  # fmt: skip


def row(run_id: str, *, lr: float = 0.1, accuracy: float | None = None, **more: Any) -> ListedRun:
    """A run of the experiment `mine` with its parameters."""
    spec = ExperimentSpec(name=more.pop("name", "mine"), parameters={"lr": lr})
    header = RunHeader(
        id=run_id, created_at=1_790_000_000.0, flatout_version="0", python="p", spec=spec
    )
    validated = () if accuracy is None else (
        Validated(at=1.0, step=8, epoch=1, metrics={"accuracy": accuracy}, is_best=True),
    )  # fmt: skip
    run = Run(
        folder=f"/runs/{run_id}", header=header, status=more.pop("status", "finished"), step=8,
        recipe=None, started=STARTED, finished=None, validations=validated, findings=(),
        checkpoint_step=None,
    )  # fmt: skip
    parameters = {"lr": lr, "width": 16, "deep": True, "limit": None}
    return ListedRun(run=run, parameters=parameters, changed=("lr",), duration_s=4.0)


DAMAGED = ListedRun(run=DamagedRun(id="bad", folder="/runs/bad", because="x"))
ROWS = [
    row("a", lr=0.3, accuracy=0.95), row("b", lr=0.01, accuracy=0.85), row("c", status="failed"),
    row("d", name="other", lr=0.2, accuracy=0.9), DAMAGED,
]  # fmt: skip


def chosen(*conditions: str, sort: str | None = None, names: tuple[str, ...] = ()) -> str:
    request = ListRequest(experiments=names, conditions=conditions, sort=sort)
    return " ".join(one.run.id for one in chosen_runs(ROWS, request))


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["accuracy>0.9"], "a"), (["accuracy >= 90 %"], "a d"), (["accuracy<0.9"], "b"),
        (["status=failed"], "c"), (["status!=finished"], "c bad"), (["lr=0.01"], "b"),
        (["lr>1e-2", "experiment=other"], "d"), (["deep=true"], "a b c d"), (["deep=no"], ""),
        (["limit=none"], "a b c d bad"), (["epochs=2"], "a b c d"), (["param.lr<0.15"], "b c"),
        (["metric.accuracy==0.85"], "b"), (["run=bad"], "bad"), (["created>2000"], "a b c d"),
        (["duration>3", "step<9"], "a b c d"),
    ],
)  # fmt: skip
def test_runs_are_chosen_by(conditions: list[str], found: str) -> None:
    assert chosen(*conditions) == found


@pytest.mark.parametrize(
    ("sort", "found"),
    [("lr", "b c d a bad"), ("-lr", "a d c b bad"), ("-accuracy", "a d b c bad"),
     ("accuracy", "b d a c bad"), ("run", "a b bad c d"), ("status", "c a b d bad")],
)  # fmt: skip
def test_runs_are_sorted_by(sort: str, found: str) -> None:
    assert chosen(sort=sort) == found


def test_runs_are_chosen_by_experiment() -> None:
    assert chosen(names=("other",)) == "d"
    assert chosen("accuracy>0.9", names=("other", "mine"), sort="-lr") == "a"


@pytest.mark.parametrize(
    ("request_", "rule", "hint"),
    [
        (ListRequest(sort="acuracy"), "unknown-run-key", "did you mean `accuracy`?"),
        (ListRequest(sort="-lrr"), "unknown-run-key", "did you mean `lr`?"),
        (ListRequest(conditions=("widht>1",)), "unknown-run-key", "did you mean `width`?"),
        (ListRequest(conditions=("lr",)), "bad-condition", "accuracy>0.9"),
        (ListRequest(conditions=(">1",)), "bad-condition", "status=failed"),
        (ListRequest(experiments=("othr",)), "unknown-experiment", "did you mean `other`?"),
    ],
)
def test_what_no_run_has_is_refused(request_: ListRequest, rule: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen_runs(ROWS, request_)
    assert caught.value.rule == rule
    assert hint in caught.value.fix


@given(st.text(max_size=30), st.text(max_size=12))
def test_no_text_of_a_condition_fails_otherwise(condition: str, sort: str) -> None:
    try:
        chosen_runs(ROWS, ListRequest(conditions=(condition,), sort=sort or None))
    except UsageError as error:
        assert error.rule in ("bad-condition", "unknown-run-key")


def test_a_list_at_80_columns(cli: Any) -> None:
    for number, words in enumerate(
        [{"lr": 0.01, "steps": 8}, {}, {"pause": 0.001, "steps": 4, "lr": 0.3, "mode": "warn"}]
    ):
        cli.run(*cli.train("--name", f"a-run-with-a-name-{number}", **words))
    cli.run(*cli.train("--name", "lost", mode="break"))
    shown = on_terminal(cli, "runs")
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(f"a-run-with-a-name-{number} " in shown for number in range(3))
    # What differs from the defaults, whole pairs; what is at its default is not told.
    assert "lr=0.01 " in lines[1] and "lr=" not in lines[2]
    assert re.search(r"lost +failed", shown)
    # In a pipe there is room for all.
    piped = cli.run("runs").stdout
    assert "pause=0.001 steps=4 lr=0.3 mode=warn" in piped and "created" in piped
    document = json.loads(cli.run("runs", "--json", "--sort", "-accuracy").stdout)
    assert [run["header"]["id"] for run in document][0] == "a-run-with-a-name-0"
    assert document[0]["parameters"] == {
        "lr": 0.01, "mode": "finish", "steps": 8, "pause": 0.02, "hold": "",
    }  # fmt: skip
    assert document[0]["changed"] == ["lr", "steps"] and document[0]["duration_s"] == 1.0


def test_runs_are_listed_by_name_condition_and_order(cli: Any) -> None:
    for lr in (0.1, 0.3, 0.2):
        cli.run(*cli.train(lr=lr))
    listed = cli.run("runs", "mine", "--sort", "-lr", "--where", "lr>0.1").stdout
    assert re.findall(r"^mine-\d+", listed, re.M) == ["mine-0002", "mine-0003"]
    wrong = cli.run("runs", "main")
    assert wrong.returncode == 2 and "did you mean `mine`?" in wrong.stderr
    assert "flatout runs\n" in cli.run("runs", "--where", "lr>9").stderr
    assert cli.run("runs", "--sort", "lr", "rm", "x").returncode == 2


def test_rm_of_all_that_failed(cli: Any) -> None:
    cli.run(*cli.train())
    for _ in range(2):
        cli.run(*cli.train(mode="break"))
    asked = cli.run("runs", "rm", "--failed")
    assert asked.returncode == 1 and "nothing was deleted" in asked.stderr
    assert re.search(r"mine-0002 +[\d.]+ KiB  \S+mine-0002", asked.stderr)
    done = cli.run("runs", "rm", "--failed", "--yes", "--json")
    assert json.loads(done.stdout)["deleted"] == ["mine-0002", "mine-0003"]
    assert os.listdir(cli.runs) == ["mine-0001"]
    none = cli.run("runs", "rm", "--failed", "--yes")
    assert none.returncode == 0 and "no run has failed" in none.stderr
    for words in (["runs", "rm"], ["runs", "rm", "--failed", "mine-0001"]):
        assert "explain wrong-usage" in cli.run(*words).stderr


def test_rm_of_all_that_failed_keeps_what_is_being_resumed(cli: Any) -> None:
    for _ in range(2):
        cli.run(*cli.train(mode="break"))
    kept = RunFolder(cli.runs / "mine-0002")
    # As a command line does whose worker is still loading.
    assert kept.attended.acquire()
    (cli.runs / "mine-0001/checkpoints/000004").mkdir(parents=True)
    (cli.runs / "mine-0001/checkpoints/000004/rank0.json").touch()
    done = cli.run("runs", "rm", "--failed", "--yes", "--json")
    assert "could be resumed from step 4" in done.stderr
    assert "kept mine-0002: it is being resumed" in done.stderr
    assert json.loads(done.stdout) == {"deleted": ["mine-0001"], "in_use": ["mine-0002"]}
    assert os.listdir(cli.runs) == ["mine-0002"]
    kept.attended.release()


def test_compare_shows_defaults_and_what_was_trained(cli: Any) -> None:
    cli.run(*cli.train())
    cli.run(*cli.train(lr=0.003))
    cli.run("train", "--resume", "mine-0001", "--epochs", "6")
    compared = cli.run("compare", "mine-0001", "mine-0002").stdout
    assert re.search(r"lr +0.001 +0.003", compared)
    assert re.search(r"epochs +6 +3 *\n", compared)
    assert re.search(r"step +12 +6 *\n", compared)


def test_compare_of_seven_runs_at_80_columns_breaks_no_word(cli: Any) -> None:
    names = [f"experiment-{number:04d}" for number in range(7)]
    for name in names:
        cli.run(*cli.train("--name", name, lr=0.1, steps=2))
    shown = on_terminal(cli, "compare", *names)
    assert all(len(line) <= 80 for line in shown.splitlines())
    for word in (*names, "experiment", "peak memory", "finished"):
        assert word in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("path", "shown"),
    [("/home/me/.local/state/flatout/runs/luck/weights.safetensors", "luck"),
     ("/data/other.safetensors", "/data/other.safetensors"), (None, "-")],
)  # fmt: skip
def test_compare_tells_where_weights_came_from(path: str | None, shown: str) -> None:
    runs = [row("a").run, row("b").run]
    assert isinstance(runs[0], Run)
    spec = msgspec.structs.replace(runs[0].header.spec, init=path)
    header = msgspec.structs.replace(runs[0].header, spec=spec)
    first = msgspec.structs.replace(runs[0], header=header)
    rows = {one.name: one for one in compare_runs([first, runs[1]]).rows}  # type: ignore[list-item]
    init = rows.get("init")
    assert (show_runs.wording.value_text("init", init.values[0]) if init else "-") == shown


def on_terminal(cli: Any, *words: str) -> str:
    """What a command prints on a terminal of 80 columns."""
    if sys.platform == "win32":
        pytest.skip("needs a terminal of POSIX")
    import pty

    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START, *words], cwd=cli.folder,
        env=cli.environment(COLUMNS="80", LINES="40", TERM="dumb"), stdin=subprocess.DEVNULL,
        stdout=child, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(child)
    reported = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # Linux tells the end of a terminal so.
            break
        if not part:
            break
        reported += part
    assert process.wait(60) == 0
    os.close(parent)
    return reported.decode().replace("\r\n", "\n")
