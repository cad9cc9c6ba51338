"""Pictures of a run: which are drawn, from what, and that a training never fails for them."""

from __future__ import annotations

import importlib.util
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from flatout.errors import RunFailed
from flatout.monitor import figures, plots
from flatout.monitor.figures import Curves
from flatout.schema.class_report import Results
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import Classified, EpochEnded, Progress, Validated

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
needs_matplotlib = pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs the package matplotlib")


def progress(step: int, loss: float | None = 0.5, rate: float = 0.1) -> Progress:
    return Progress(
        at=0.0, step=step, epoch=0, loss=loss, samples_per_s=None, learning_rate=rate,
        memory_bytes=None, split_s={},
    )  # fmt: skip


def validated(step: int, **metrics: float | None) -> Validated:
    return Validated(at=0.0, step=step, epoch=0, metrics=metrics, is_best=True)


def classified(num_classes: int, name: str = "classes", num_empty: int = 0) -> Classified:
    """Every class has 9 samples taken rightly and 1 taken for the next; the last ones have none."""
    present = range(num_classes - num_empty)
    right = [(one, one, 9) for one in present]
    wrong = [(one, (one + 1) % num_classes, 1) for one in present]
    labels = tuple(f"${number}$ \x1b" for number in range(num_classes))
    return Classified(
        at=0.0, step=20, epoch=0, name=name, labels=labels, counts=tuple(right + wrong)
    )


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Makes a run whose folder is there."""

    def make(status: Any = "finished", *validations: Validated) -> Run:
        header = RunHeader(
            id="mine-0001", created_at=0.0, flatout_version="0", python="",
            spec=ExperimentSpec(name="mine"),
        )  # fmt: skip
        return Run(
            folder=str(tmp_path), header=header, status=status, step=20, recipe=None, started=None,
            finished=None, validations=validations, findings=(), checkpoint_step=None,
        )  # fmt: skip

    return make


def results(*lines: Classified) -> Results:
    return Results(confusions=lines, samples=None)


def size(file: Path) -> tuple[int, int]:
    """Width and height of a PNG file in pixels."""
    head = file.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def is_true_soon(look: Callable[[], bool]) -> bool:
    """Whether something becomes true: drawing goes on when the command has ended."""
    end_s = time.monotonic() + 120
    while not look() and time.monotonic() < end_s:
        time.sleep(0.05)
    return look()


def is_there(file: Path) -> bool:
    """Whether a file appears."""
    return is_true_soon(file.exists)


def test_curves_put_losses_together_and_leave_out_what_is_not_finite() -> None:
    lines = [
        progress(1, 2.0), progress(2, None), EpochEnded(at=0.0, step=2, epoch=0, loss=1.5),
        validated(2, loss=1.0, macro_f1=0.5, accuracy=None),
    ]  # fmt: skip
    curves = Curves(lines)
    assert curves.panels == {
        "loss": {
            "training": [(1, 2.0)], "training, epoch mean": [(2, 1.5)],
            "validation": [(2, 1.0)],
        },
        "macro f1": {"macro_f1": [(2, 0.5)]},
    }  # fmt: skip
    assert not curves.has_changing_rate
    assert Curves([progress(1), progress(2, rate=0.2)]).has_changing_rate
    # Of a quick run no progress may have been told but at its end.
    first, second = (
        EpochEnded(at=0.0, step=step, epoch=step, loss=1.0, learning_rate=0.1 / step)
        for step in (1, 2)
    )
    assert Curves([first, second]).has_changing_rate


LINES = [
    progress(5, 3.0), progress(15, 0.01, 0.2), EpochEnded(at=0.0, step=20, epoch=0, loss=1.0),
    validated(20, loss=1.0, accuracy=0.9, psnr=21.0),
]  # fmt: skip


@needs_matplotlib
@pytest.mark.parametrize(
    ("lines", "reported", "names"),
    [
        ([], results(), []),
        ([progress(5)], results(), ["curves"]),
        ([progress(5, None)], results(), []),
        ([validated(20, loss=None)], results(), []),
        (LINES, results(), ["curves", "learning_rate"]),
        ([], results(classified(2)), ["confusion", "per_class"]),
        ([], results(classified(3, num_empty=1)), ["confusion", "per_class"]),
        ([], results(classified(3, num_empty=3)), []),
        ([], results(classified(60)), ["confusion", "per_class"]),
        ([], results(classified(figures.MOST_CLASSES + 1)), ["per_class"]),
        ([], results(classified(2), classified(3, "kind/of it")),
         ["confusion", "per_class", "confusion-kind-of-it", "per_class-kind-of-it"]),
    ],
)  # fmt: skip
def test_what_is_there_is_drawn(
    make_run: Callable[..., Run],
    tmp_path: Path,
    lines: list[Any],
    reported: Results,
    names: list[str],
) -> None:
    stale = tmp_path / "plots" / "old.png"
    stale.parent.mkdir()
    stale.touch()
    drawn = plots.draw(make_run("running", validated(20, loss=1.0)), lines, reported)
    assert drawn == [tmp_path / "plots" / f"{name}.png" for name in names]
    assert sorted(stale.parent.iterdir()) == sorted(drawn)
    for file in drawn:
        width, height = size(file)
        assert 400 < width < 1900 and 150 < height < 1900


@needs_matplotlib
def test_drawing_leaves_the_settings_of_matplotlib_alone(make_run: Callable[..., Run]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.draw(make_run(), LINES, results(classified(2)))
    assert dict(matplotlib.rcParams) == before


@needs_matplotlib
def test_what_matplotlib_cannot_draw_is_reported(make_run: Callable[..., Run]) -> None:
    line = msgspec.structs.replace(classified(2), counts=((0, 0, 1), (0, 7, 1)))
    with pytest.raises(RunFailed) as caught:
        plots.draw(make_run(), [], results(line))
    assert caught.value.rule == "plots-not-drawn"


@needs_matplotlib
def test_a_matplotlib_that_is_broken_is_reported(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", ModuleType("figure"))
    with pytest.raises(RunFailed) as caught:
        plots.draw(make_run(), LINES, results(classified(2)))
    assert caught.value.rule == "plots-not-drawn"


@needs_matplotlib
def test_train_draws_when_all_is_said(cli: Any) -> None:
    cli.missing = ()
    done = cli.run(*cli.train(mode="classify"))
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("plots") and "being drawn in " in last
    assert is_there(cli.runs / "mine-0001" / "plots" / "per_class.png")


@needs_matplotlib
def test_train_does_not_fail_when_nothing_can_be_drawn(cli: Any) -> None:
    cli.missing = ()
    cli.run(*cli.train(steps=2))
    plots_folder = cli.runs / "mine-0001" / "plots"
    log = cli.runs / "mine-0001" / "worker.log"
    # Said once all of them are there.
    assert is_true_soon(lambda: "curves.png in " in log.read_text())
    for file in plots_folder.iterdir():
        file.unlink()
    plots_folder.rmdir()
    plots_folder.touch()
    done = cli.run("train", "--resume", "mine-0001", "--epochs", "2", "--json")
    assert done.returncode == 0
    assert msgspec.json.decode(done.stdout)["exit_code"] == 0
    assert is_true_soon(lambda: "see: " in log.read_text())


@needs_matplotlib
def test_show_draws_a_run_that_has_not_ended(cli: Any) -> None:
    cli.run(*cli.train(mode="die"))
    cli.missing = ()
    done = cli.run("show", "last", "--plots")
    assert done.returncode == 0, done.stderr
    assert "curves.png in " in done.stderr and not done.stdout


def test_show_plots_when_the_package_is_missing(cli: Any) -> None:
    trained = cli.run(*cli.train())
    assert trained.returncode == 0 and "\nplots " not in trained.stdout + trained.stderr
    done = cli.run("show", "last", "--plots")
    assert done.returncode == 2
    assert "fix: pip install 'flatout[plots]'" in done.stderr
