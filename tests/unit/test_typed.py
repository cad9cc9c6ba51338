"""Suggested commands work when typed, and a run that was long enough is refused at once."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import msgspec
import pytest

from flatout.cli.render import wording
from flatout.errors import UsageError
from flatout.runs.start import refuse_if_long_enough
from flatout.schema import suggested_command
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import Extended, Finished, Started
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import TuneRequest
from flatout.schema.units import parse_bytes, size_text

AUTO = TuneRequest(mode="auto")


def run(**facts: Any) -> Run:
    spec = facts.pop("spec", ExperimentSpec(name="digits", tuning=AUTO))
    asked = facts.pop("asked", {})
    length = {"num_steps": 138, "num_epochs": 6, "steps_per_epoch": 23, **facts.pop("length", {})}
    header = RunHeader(
        id="tour",
        created_at=0.0,
        flatout_version="0.1.0",
        python=facts.pop("python", sys.executable),
        on=facts.pop("on", None),
        spec=spec,
    )
    started = Started(at=0.0, step=0, pid=1, num_parameters=5, num_samples=80, **length, **asked)
    reported: dict[str, Any] = {
        "status": "finished", "step": 138, "recipe": None, "started": started, "finished": None,
        "validations": (), "findings": (), "checkpoint_step": 138,
    }  # fmt: skip
    return Run(folder="/runs/tour", header=header, **(reported | facts))


def commands(one: Run) -> list[str]:
    return [command for command, _ in wording.next_steps(one, track=())]


def test_another_seed_keeps_everything_else() -> None:
    spec = ExperimentSpec(
        name="digits", parameters={"lr": 0.0012345678, "width": 8, "act": "a b", "bias": None},
        epochs=6, seed=1, fixed={"precision": "bf16"}, init="/weights/of mine.safetensors",
        tuning=AUTO,
    )  # fmt: skip
    again = commands(run(spec=spec))[-1]
    assert shlex.split(again) == [
        "flatout", "train", "digits", "-s", "lr=0.0012345678", "-s", "width=8", "-s", "act=a b",
        "-s", "bias=none", "--use", "precision=bf16", "--epochs", "6", "--seed", "2", "--init",
        "/weights/of mine.safetensors",
    ]  # fmt: skip


def test_run_that_was_extended_is_compared_at_its_whole_length() -> None:
    extended = Extended(at=0.0, step=69, epochs=6)
    spec = ExperimentSpec(name="digits", epochs=3, tuning=AUTO)
    again = commands(run(spec=spec, extended=extended))[-1]
    assert again == "flatout train digits --epochs 6 --seed 1"


@pytest.mark.parametrize(
    ("length", "longer"),
    [
        ({}, "flatout train --resume tour --epochs 12"),
        ({"num_epochs": None, "num_steps": 100}, "flatout train --resume tour --steps 200"),
    ],
)
def test_longer_is_reported_in_the_runs_own_measure(length: dict[str, Any], longer: str) -> None:
    assert longer in commands(run(length=length))


def test_longer_is_not_suggested_where_the_rate_would_be_0() -> None:
    ended = Finished(
        at=0.0, step=138, train_s=1.0, split_s={}, num_samples_seen=1, is_schedule_over=True
    )
    assert not any("--resume" in one for one in commands(run(finished=ended)))


@pytest.mark.parametrize(
    ("rule", "file", "checkpoint", "first"),
    [
        ("experiment-raised", "/home/me/own.py", 47, "flatout train --resume tour --changed"),
        ("nonfinite-loss", "/home/me/own.py", 47, "flatout train --resume tour --changed"),
        ("unknown-metric", "/home/me/my own.py", None, "flatout train '/home/me/my own.py'"),
        ("out-of-memory", "/home/me/own.py", 47, "flatout train --resume tour"),
        ("experiment-raised", None, 47, "flatout train --resume tour"),
    ],
)
def test_failed_run_goes_on_by_what_works(
    rule: str, file: str | None, checkpoint: int | None, first: str
) -> None:
    failure = Finding(rule=rule, severity="error", problem="it failed")
    spec = ExperimentSpec(name="own", file=file, sha256="0" if file else None, tuning=AUTO)
    one = run(status="failed", spec=spec, failure=failure, checkpoint_step=checkpoint)
    expected = shlex.split(first) if sys.platform != "win32" else None
    assert expected is None or shlex.split(commands(one)[0]) == expected


@pytest.mark.parametrize(
    ("spec", "facts", "words"),
    [
        ({"tuning": TuneRequest(mode="full")}, {}, "--tune full"),
        ({"tuning": TuneRequest(mode="off")}, {}, "--tune off"),
        ({"tuning": TuneRequest(mode="full", numerics="fast")}, {}, "--tune full --numerics fast"),
        ({"tuning": TuneRequest(mode="auto", numerics="strict")}, {}, "--numerics strict"),
        # Without a search nothing may round in another way.
        ({"tuning": TuneRequest(mode="off", numerics="fast")}, {}, "--tune off"),
        ({"leave_free_bytes": 3 * 2**29}, {}, "--leave-free 1.5GiB"),
        ({}, {"asked": {"leave_free_bytes": 0}}, "--leave-free 0B"),
        # Ranks search nothing unasked.
        ({"tuning": TuneRequest(mode="off")}, {"asked": {"on": "local:2"}}, "--on local:2"),
        ({}, {"python": "/other/python"}, "--python /other/python"),
        ({}, {"asked": {"python": "/other/python"}}, "--python /other/python"),
    ],
)
def test_another_seed_keeps_what_was_typed(
    spec: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    own = ExperimentSpec(**({"name": "digits", "tuning": AUTO} | spec))
    again = commands(run(spec=own, **facts))[-1]
    assert shlex.split(again) == ["flatout", "train", "digits", "--seed", "1", *words.split()]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"asked": {"on": "local:2"}}, " --on local:2"),
        # It broke off before it had told how it was started.
        ({"on": "ray:4", "started": None}, " --on ray:4"),
        # As it was resumed last: by a single process.
        ({"on": "ray:4"}, ""),
        ({"asked": {"leave_free_bytes": 2**30}}, " --leave-free 1GiB"),
        ({"asked": {"python": "/other/python"}}, " --python /other/python"),
        # That is the run's own.
        ({"python": "/other/python", "asked": {"python": "/other/python"}}, ""),
    ],
)
def test_resume_keeps_what_is_not_in_the_run(facts: dict[str, Any], words: str) -> None:
    assert commands(run(status="stopped", **facts))[0] == f"flatout train --resume tour{words}"
    failure = Finding(rule="nonfinite-loss", severity="error", problem="it failed")
    failed = run(status="failed", failure=failure, **facts)
    spec = msgspec.structs.replace(failed.header.spec, file="/own.py")
    failed = msgspec.structs.replace(
        failed, header=msgspec.structs.replace(failed.header, spec=spec)
    )
    assert commands(failed)[0] == f"flatout train --resume tour --changed{words}"


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ({"status": "stopped"}, 'flatout.train(experiment, resume="tour")'),
        ({}, 'flatout.train(experiment, resume="tour", epochs=12)'),
        ({"length": {"num_epochs": None, "num_steps": 9}}, None),
    ],
)
def test_run_of_a_notebook_goes_on_in_python(facts: dict[str, Any], first: str | None) -> None:
    reported = commands(run(spec=ExperimentSpec(name="notebook"), **facts))
    others = [one for one in reported if not one.startswith("flatout show ")]
    assert others == ([first] if first else [])


def test_refused_resume_keeps_what_was_typed() -> None:
    request = TrainRequest(
        resume="tour", epochs=3, uses=("precision=bf16",), leave_free="2GiB", on="local:2",
        python="/other/python",
    )  # fmt: skip
    with pytest.raises(UsageError) as caught:
        refuse_if_long_enough(run(), request)
    assert caught.value.fix == (
        "train it longer, such as: flatout train --resume tour --use precision=bf16 --epochs 12 "
        "--leave-free 2GiB --on local:2 --python /other/python"
    )


@pytest.mark.parametrize(
    "num_bytes", [0, 1, 1023, 1024, 3 * 2**29, 10**9, 2**40 + 1, 2**45 - 2**20]
)
def test_size_is_read_back(num_bytes: int) -> None:
    assert parse_bytes(size_text(num_bytes), "--leave-free") == num_bytes


def test_recipe_of_a_file_cannot_be_typed() -> None:
    spec = ExperimentSpec(name="digits", fixed={f"field_{n}": n for n in range(20)})
    assert suggested_command.train_command(spec) is None
    assert not any("--seed" in one for one in commands(run(spec=spec)))


def test_recipe_and_trackers_are_typed_where_they_are_given() -> None:
    spec = ExperimentSpec(name="digits", fixed={"device": "cpu"}, tuning=AUTO)
    command = suggested_command.train_command(
        spec, recipe="my own.json", track=("mlflow:http://host:5000", "wandb")
    )
    assert command is not None and shlex.split(command) == [
        "flatout", "train", "digits", "--recipe", "my own.json", "--use", "device=cpu", "--track",
        "mlflow:http://host:5000", "--track", "wandb",
    ]  # fmt: skip


def test_search_is_made_again_as_it_was() -> None:
    tuning = TuneRequest(
        mode="full", numerics="fast", budget_s=90.0, is_only=True, emit="lightning"
    )
    spec = ExperimentSpec(
        name="digits", parameters={"width": 8}, fixed={"precision": "bf16"}, steps=500,
        leave_free_bytes=2**30, tuning=tuning,
    )  # fmt: skip
    change = run(spec=spec, python="/other/python").change_for_another(sys.executable)
    assert shlex.split(suggested_command.tune_command(spec, change)) == [
        "flatout", "tune", "digits", "-s", "width=8", "--use", "precision=bf16", "--steps", "500",
        "--numerics", "fast", "--budget", "90", "--emit", "lightning", "--leave-free", "1GiB",
        "--python", "/other/python",
    ]  # fmt: skip


def test_words_are_quoted_for_the_shell_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert (
        suggested_command.command_line(["flatout", "a b", "it's"]) == "flatout 'a b' 'it'\"'\"'s'"
    )
    monkeypatch.setattr(sys, "platform", "win32")
    assert (
        suggested_command.command_line(
            ["flatout", "a b", "a=$x", "`id`", "a,b", "@x", "#", "it\u2019s"]
        )
        == "flatout 'a b' 'a=$x' '`id`' 'a,b' '@x' '#' 'it\u2019\u2019s'"
    )


@pytest.mark.parametrize(
    ("facts", "asked", "is_refused"),
    [
        ({}, {"epochs": 4}, True),
        ({}, {"epochs": 6}, True),
        ({}, {"epochs": 7}, False),
        ({}, {"steps": 100}, True),
        ({}, {"steps": 139}, False),
        ({}, {}, True),
        # What came after its last checkpoint is made again.
        ({"status": "interrupted", "checkpoint_step": 60}, {"epochs": 3}, False),
        ({"status": "stopped", "checkpoint_step": 69}, {"epochs": 2}, True),
        ({"status": "stopped", "checkpoint_step": 69}, {}, False),
        ({"status": "new", "step": 0, "checkpoint_step": None, "started": None}, {}, False),
        ({"status": "failed", "checkpoint_step": None}, {"epochs": 1}, False),
    ],
)
def test_run_that_was_trained_that_long_is_refused(
    facts: dict[str, Any], asked: dict[str, int], is_refused: bool
) -> None:
    request = TrainRequest(resume="tour", **asked)
    if not is_refused:
        refuse_if_long_enough(run(**facts), request)
        return
    with pytest.raises(UsageError) as caught:
        refuse_if_long_enough(run(**facts), request)
    assert caught.value.rule == "run-is-finished" and "such as: flatout" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "asked", "says"),
    [
        (("epochs=2",), {"epochs": 1}, "`--epochs 1` overrides `-s epochs=2`"),
        (("steps=300",), {"epochs": 1}, "`--epochs 1` overrides `-s steps=300`"),
        (("lr=1", "steps = 300"), {"steps": 9}, "`--steps 9` overrides `-s steps = 300`"),
        (("lr=1",), {"epochs": 1}, None),
        (("epochs=2",), {}, None),
    ],
)
def test_length_that_is_given_twice_is_reported(
    settings: tuple[str, ...], asked: dict[str, int], says: str | None
) -> None:
    found = list(TrainRequest(experiment="digits", settings=settings, **asked).warnings())
    assert [one.rule for one in found] == (["length-set-twice"] if says else [])
    assert says is None or says in found[0].problem


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, []),
        ({"tune": "auto", "numerics": "fast"}, []),
        ({"tune": "full", "is_dry_run": True}, ["--tune full"]),
        ({"tune": "auto", "numerics": "fast", "is_dry_run": True}, ["--numerics fast"]),
        ({"tune": "auto", "budget": 5.0, "is_dry_run": True}, ["--budget"]),
        ({"tune": "off", "numerics": "fast"}, ["--numerics fast"]),
        ({"tune": "auto", "numerics": "strict", "recipe": "r.json"}, ["--numerics strict"]),
        ({"tune": "full", "experiment": None, "resume": "tour"}, ["--tune full"]),
        ({"is_trusted": True}, ["--trust"]),
        ({"is_trusted": True, "experiment": None, "resume": "./tour"}, []),
    ],
)
def test_option_without_effect_on_a_training_is_named(
    asked: dict[str, Any], options: list[str]
) -> None:
    found = list(TrainRequest(**({"experiment": "digits"} | asked)).warnings())
    assert [one.problem for one in found] == [f"`{name}` has no effect." for name in options]


@pytest.mark.parametrize(
    "asked",
    [
        {"epochs": 1, "steps": 2},
        {"is_dry_run": True, "run_id": "mine"},
        {"is_dry_run": True, "experiment": None, "resume": "tour"},
        {"is_dry_run": True, "on": "local:2"},
        {"is_changed": True, "experiment": None, "resume": "tour", "on": "cluster"},
    ],
)
def test_options_that_cannot_be_combined_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        TrainRequest(**({"experiment": "digits"} | asked)).check()
    assert caught.value.rule == "cannot-be-combined"
    assert str(asked.get("resume", "")) not in str(caught.value.because).split()


def test_changed_needs_a_run() -> None:
    with pytest.raises(UsageError) as caught:
        TrainRequest(experiment="digits", is_changed=True).check()
    assert caught.value.rule == "wrong-usage"
    assert caught.value.fix == "name the run: flatout train --resume RUN --changed"
