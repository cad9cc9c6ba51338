"""What is shown of a run: words, the state of a training, and lines that fit 80 columns."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from flatout.cli.main import COMMANDS
from flatout.cli.render import show, wording
from flatout.cli.render.progress import TrainingState
from flatout.runs import api as runs_api
from flatout.runs.model.comparison import compare_runs
from flatout.schema.class_report import Results
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run import Run, RunHeader, checkpointing
from flatout.schema.run_lines import (
    Checkpointed,
    EpochEnded,
    Finished,
    Progress,
    Started,
    Stopped,
    Validated,
)

LENGTHS = ("num_steps", "num_epochs", "steps_per_epoch")


def started(**facts: Any) -> Started:
    reported = {
        "num_steps": 100,
        "num_epochs": 10,
        "steps_per_epoch": 10,
        "num_samples": 80,
        **facts,
    }
    return Started(at=0.0, step=facts.pop("step", 0), pid=1, num_parameters=5, unit="images", **{
        name: value for name, value in reported.items() if name != "step"
    })  # fmt: skip


def progress(at: float, step: int, **facts: Any) -> Progress:
    reported = {"loss": 0.5, "samples_per_s": 1234.0, "memory_bytes": 3 * 2**30, **facts}
    return Progress(at=at, step=step, epoch=0, learning_rate=0.1, split_s={}, **reported)


def state_of(*lines: Any) -> TrainingState:
    state = TrainingState()
    for line in lines:
        state.take(line)
    return state


def run(run_id: str = "digits-0001", **facts: Any) -> Run:
    spec = facts.pop("spec", ExperimentSpec(name="digits"))
    header = RunHeader(
        id=run_id, created_at=0.0, flatout_version="0.1.0", python="/bin/python", spec=spec
    )
    reported: dict[str, Any] = {
        "status": "finished", "step": 100, "recipe": None, "started": started(), "finished": None,
        "validations": (), "findings": (), "checkpoint_step": None, **facts,
    }  # fmt: skip
    return Run(folder="/runs/digits-0001", header=header, **reported)


def validated(step: int, accuracy: float, *, is_best: bool = False) -> Validated:
    metrics = {"loss": 0.25, "accuracy": accuracy}
    return Validated(at=0.0, step=step, epoch=0, metrics=metrics, is_best=is_best)


def test_state_tells_time_left_by_the_pace() -> None:
    state = state_of(started(), progress(10.0, 10), progress(12.0, 20))
    assert state.left_s() == pytest.approx(16.0)
    assert state.speed == "1,234 images/s · 3.0 GiB · 16 s left"


@pytest.mark.parametrize(
    "lines",
    [
        [progress(10.0, 10), progress(12.0, 20)],
        [started(num_steps=None), progress(10.0, 10), progress(12.0, 20)],
        [started(), progress(10.0, 10)],
        [started(), progress(10.0, 10), progress(10.0, 20)],
        [started(), progress(10.0, 90), progress(12.0, 100)],
        # What an earlier session took says nothing about this one.
        [started(), progress(10.0, 10), progress(12.0, 20), started(step=20), progress(90.0, 30)],
    ],
)
def test_state_says_nothing_of_time_left_where_it_cannot_know(lines: list[Any]) -> None:
    assert state_of(*lines).left_s() is None


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([started()], "epoch 1/10"),
        ([started(), progress(0.0, 10)], "epoch 1/10"),
        ([started(), progress(0.0, 11)], "epoch 2/10"),
        ([started(num_epochs=None, steps_per_epoch=None), progress(0.0, 7)], "step 7/100"),
        ([started(**dict.fromkeys(LENGTHS)), progress(0.0, 7)], "step 7"),
        ([], ""),
    ],
)
def test_state_tells_the_place(lines: list[Any], place: str) -> None:
    assert state_of(*lines).position == place


def test_state_tells_the_step_beside_the_epoch() -> None:
    assert state_of(started(), progress(0.0, 11)).steps == "step 11/100"
    # Not twice, where the step is all that is known of the place.
    assert state_of(started(num_epochs=None), progress(0.0, 11)).steps == ""
    assert state_of().steps == ""


def test_state_tells_training_loss_apart_from_validation() -> None:
    state = state_of(started(), EpochEnded(at=0.0, step=10, epoch=0, loss=0.125))
    assert state.quality == "loss 0.125"
    state.take(Validated(at=0.0, step=10, epoch=0, metrics={"loss": 0.5}, is_best=True))
    assert state.quality == "loss 0.125 · validation loss 0.5"
    state.take(validated(20, 0.987))
    assert state.quality == "loss 0.125 · accuracy 98.7 %"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.987, "98.7 %"),
        ("top5_accuracy", 1.0, "100.0 %"),
        ("accuracy", 98.7, "98.7"),
        ("loss", 0.0123456, "0.01235"),
        ("loss", None, "not finite"),
    ],
)
def test_metric_text(name: str, value: float | None, text: str) -> None:
    assert wording.metric_text(name, value) == text


def test_shares_are_of_the_whole_and_the_longest_first() -> None:
    split = {"data": 1.0, "forward": 3.0, "copy": 0.0}
    assert wording.shares(split) == [("forward", "3 s", "75.0 %"), ("data", "1 s", "25.0 %")]
    assert wording.shares({}) == []


def test_closing_text_names_the_best_and_what_a_resume_begins_with() -> None:
    stopped = run(
        status="stopped", step=95, checkpoint_step=90,
        validations=(validated(10, 0.9, is_best=True), validated(20, 0.8)),
    )  # fmt: skip
    assert wording.closing_text(stopped) == (
        "accuracy 90.0 % · validation loss 0.25 (best, at step 10) · "
        "epoch 10/10 · step 95/100 · "
        "checkpoint at step 90"
    )
    assert "no checkpoint yet" in wording.closing_text(run(status="interrupted"))


def test_closing_text_says_why_it_ended_early() -> None:
    early = Finished(
        at=0.0, step=50, train_s=1.0, split_s={}, num_samples_seen=9, reason="early stopping: 3"
    )
    assert "early stopping: 3" in wording.closing_text(run(finished=early))
    stopped = Stopped(at=0.0, step=50, reason="terminated")
    assert "terminated" in wording.closing_text(run(status="stopped", stopped=stopped))
    # What ended an earlier session says nothing about this one.
    assert "early" not in wording.closing_text(run(status="interrupted", finished=early))


def test_cost_text_tells_what_checkpoints_cost() -> None:
    reported = [
        Checkpointed(at=0.0, step=9, stall_s=0.01, write_s=0.2, slowdown_s=0.02, size_bytes=2048),
        Checkpointed(at=0.0, step=18, stall_s=0.03, write_s=0.4, slowdown_s=0.0, size_bytes=2048),
    ]
    cost = checkpointing(reported, share=None, train_s=3.0)
    assert cost is not None
    assert wording.cost_text(cost) == (
        "2 written · 20 ms pause each · 10 ms of slowdown · 300 ms to write 2.0 KiB · "
        "2.00 % of the time lost"
    )
    reported_share = checkpointing(reported, share=0.005, train_s=3.0)
    assert reported_share is not None
    assert wording.cost_text(reported_share, is_short=True) == (
        "2 written · 20 ms pause each · 0.50 % of the time lost"
    )
    assert checkpointing([], share=0.0, train_s=1.0) is None


def test_wrapped_keeps_short_parts_together() -> None:
    text = "accuracy 98.3 % · validation loss 0.06 (best, at step 130) · epoch 3/3 · step 135/135"
    lines = show._wrapped(text, 68)
    assert lines == [
        "accuracy 98.3 % · validation loss 0.06 (best, at step 130) ·", "epoch 3/3 · step 135/135",
    ]  # fmt: skip
    assert show._wrapped(text * 99, None) == [text * 99]


@pytest.mark.parametrize(
    ("name", "plain"),
    [("samples_per_s", "rate"), ("train_s", "in all"), ("forward_s", "forward"),
     ("peak_memory_bytes", "peak memory")],
)  # fmt: skip
def test_plain_name(name: str, plain: str) -> None:
    assert wording.plain_name(name) == plain


@pytest.mark.parametrize(
    ("status", "first"),
    [
        ("finished", "flatout show digits-0001"),
        ("stopped", "flatout train --resume digits-0001"),
        ("failed", "flatout train --resume digits-0001"),
        ("running", "flatout show digits-0001 --follow"),
    ],
)
def test_next_steps_fit_how_a_run_stands(status: str, first: str) -> None:
    (command, _), *_ = wording.next_steps(run(status=status), track=())
    assert command == first


class Terminal(io.StringIO):
    """A file that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("width", "num_lines"), [(300, 3), (40, 6)])
def test_a_command_and_its_use_stand_on_two_lines_where_one_is_too_short(
    width: int, num_lines: int
) -> None:
    file = Terminal()
    show.print_next_steps(
        Console(file=file, width=width, color_system=None), run(status="finished")
    )
    lines = file.getvalue().splitlines()
    assert len(lines) == num_lines


def test_compare_runs_tells_only_what_differs_and_all_that_came_out() -> None:
    ended = Finished(at=0.0, step=100, train_s=2.0, split_s={"forward": 1.5}, num_samples_seen=1000)
    one = run("a", spec=ExperimentSpec(name="digits", parameters={"lr": 0.1}), finished=ended)
    other = run("b", spec=ExperimentSpec(name="digits", seed=1), step=50)
    rows = {(row.section, row.name): row.values for row in compare_runs([one, other]).rows}
    assert rows["parameters", "lr"] == (0.1, None)
    assert rows["experiment", "seed"] == (0, 1)
    assert rows["result", "status"] == ("finished", "finished")
    assert rows["time", "samples_per_s"] == (500.0, None)
    assert rows["time", "forward_s"] == (1.5, None)
    assert ("experiment", "name") not in rows


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_train_on_a_terminal_moves_and_stays_within_80_columns(cli: Any) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = cli.environment(TERM="xterm", COLUMNS="80")
    src = str(Path(wording.__file__).parents[3])
    start = f"import sys; sys.path.insert(0, {src!r}); import flatout.__main__ as m; m.main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", start, *cli.train(steps=20)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cli.folder,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        # Linux tells the end of a terminal so.
        pass
    os.close(ours)
    assert process.wait(timeout=120) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "━━━" in text
    assert "epoch 10/10" in text
    long = [line for line in re.split(r"[\r\n]+", text) if len(line) > 80]
    # Paths of a test are longer than a line, and are not broken.
    paths = (str(cli.folder), str(cli.python))
    assert [line for line in long if not any(path in line for path in paths)] == []


def printed(monkeypatch: pytest.MonkeyPatch, run: Run, **options: Any) -> list[str]:
    """What `flatout show` prints of a run."""
    file = io.StringIO()
    console = Console(file=file, width=80, color_system=None, highlight=False, markup=False)
    monkeypatch.setattr(show, "make_console", lambda **_: console)
    metrics = [
        line
        for epoch in range(12)
        for line in (
            EpochEnded(at=0.0, step=10 * epoch + 10, epoch=epoch, loss=0.5),
            validated(10 * epoch + 10, 0.9, is_best=epoch == 3),
        )
    ]
    show.print_run(run, metrics, Results(confusions=(), samples=None), [100], {}, **options)
    return file.getvalue().splitlines()


def recipe(**changed: Any) -> Recipe:
    """A recipe of defaults, but for what is changed: a value that was measured."""
    kinds = msgspec.structs.fields(Recipe)
    chosen = {field.name: Choice(value=_VALUES.get(field.name), why="x") for field in kinds}
    measured = {
        name: Choice(value=value, why="it was faster", origin="measured")
        for name, value in changed.items()
    }
    return Recipe(**(chosen | measured))


_VALUES: dict[str, Any] = {
    "device": "cpu", "precision": "fp32", "data_path": "sliced", "loader_workers": 0,
    "optimizer_implementation": "fused", "memory_format": "contiguous", "micro_batch_size": 64,
    "activation_checkpointing": 0.0, "capture": "off", "steps_per_launch": 1, "compiled": "off",
    "sharding": "none", "batch_norm": "per-rank", "exchange": "agreed", "num_threads": 1,
    "cpu_affinity": "all", "allocator": "system", "deterministic": True,
}  # fmt: skip


def test_show_begins_with_the_result_and_has_the_metrics_on_the_first_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = validated(40, 0.9, is_best=True)
    lines = printed(monkeypatch, run(recipe=recipe(), validations=(best,)))
    assert lines[1].startswith("result      accuracy 90.0 %")
    assert lines.index("metrics") < 12
    assert any("0.5" in line and line.lstrip().startswith("12 ") for line in lines[:24])


def test_show_has_the_memory_of_a_gpu_allocated_and_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finished(allocated_bytes: int | None) -> Run:
        done = Finished(
            at=0.0, step=100, train_s=2.0, split_s={}, num_samples_seen=1000,
            peak_memory_bytes=3 * 2**30, peak_allocated_bytes=allocated_bytes,
        )  # fmt: skip
        return run(finished=done)

    text = "GPU memory  at most 2.0 GiB allocated, 3.0 GiB reserved by this run"
    assert text in printed(monkeypatch, finished(2 * 2**30))
    # On a CPU it is the process's, next to other things.
    assert not any("allocated" in line for line in printed(monkeypatch, finished(None)))


def test_show_tells_of_the_recipe_what_is_not_default(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = run(recipe=recipe(num_threads=2))
    lines = printed(monkeypatch, tuned)
    fields = [line.split()[0] for line in lines[lines.index("recipe") + 1 :] if line]
    assert fields[:1] == ["num_threads"] and "precision" not in fields
    whole = printed(monkeypatch, tuned, is_whole=True)
    assert {"num_threads", "precision", "capture"} <= {line.split()[0] for line in whole if line}
    defaults = printed(monkeypatch, run(recipe=recipe()))
    assert "recipe" not in defaults
    assert "recipe: all defaults; reasons: " in "\n".join(defaults)


def test_show_begins_with_the_error_and_does_not_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Finding(rule="nonfinite-loss", severity="error", problem="the loss is nan.")
    note = Finding(rule="a-note", severity="note", problem="something else.")
    failed = run(status="failed", findings=(note, error), failure=error)
    lines = printed(monkeypatch, failed)
    assert lines[1] == "error: the loss is nan."
    assert sum("the loss is nan" in line for line in lines) == 1
    assert sum("something else" in line for line in lines) == 1
    # Of a run that has gone on since, it is one of what was told.
    reported = printed(monkeypatch, run(findings=(error,)))
    assert not reported[1].startswith("error") and "error: the loss is nan." in reported


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_each_command_is_shown_as_it_can_be_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(runs_api, "own_command", lambda: "/elsewhere/bin/flatout")
    show.print_note(f"try flatout {name} --help; pip install flatout; flatout is {name}")
    said = capsys.readouterr().err
    assert f"try /elsewhere/bin/flatout {name} --help" in said
    assert "pip install flatout; flatout is" in said
