"""A run as pictures: drawn from its lines alone, so at any time, while it trains too."""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.monitor import figures
from flatout.monitor.figures import Curves
from flatout.schema.class_report import Results
from flatout.schema.lr_range import LrRange
from flatout.schema.run import Run
from flatout.schema.run_lines import Metric
from flatout.schema.suggested_command import show_command
from flatout.system import atomic_files
from flatout.system.optional_packages import is_installed

_PIXELS_PER_INCH = 110


def can_draw() -> bool:
    """Whether matplotlib is there; it is not imported, which takes a second."""
    return is_installed("matplotlib")


def draw(run: Run, lines: Iterable[Metric], results: Results) -> list[Path]:
    """Draws all pictures of a run into its folder; those of an earlier call are replaced.

    Args:
        run: what is drawn.
        lines: its metrics.
        results: its confusions.

    Returns:
        The files; none where there is nothing to draw yet.

    Raises:
        UsageError: matplotlib-not-installed.
        RunFailed: plots-not-drawn.
    """
    again = show_command(run.typed, "--plots")
    fix = f"the run itself is unaffected; update matplotlib and try again: {again}"
    with drawing(f"the plots of {run.id}", fix) as figure:
        drawn = dict(_drawn(run, lines, results, figure))
    return replace_all(Path(run.folder) / "plots", drawn)


def draw_lr_range(result: LrRange, path: Path) -> Path:
    """Draws the losses of a learning-rate range test over the rates; gives the file.

    Raises:
        UsageError: matplotlib-not-installed.
        RunFailed: plots-not-drawn.
    """
    what = f"the learning-rate range of {path.stem}"
    with drawing(what, "update matplotlib, and test again") as figure:
        atomic_files.write_atomically(path, png(figures.draw_lr_range(figure, result)))
    return path


@contextlib.contextmanager
def drawing(what: str, fix: str) -> Iterator[Any]:
    """matplotlib's Figure, with flatout's style while it is open.

    Args:
        what: what is drawn, for the error.
        fix: for the error.

    Raises:
        UsageError: matplotlib-not-installed.
        RunFailed: plots-not-drawn.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        figure = importlib.import_module("matplotlib.figure").Figure
        with matplotlib.rc_context(), warnings.catch_warnings():
            # A sign that the font lacks is drawn as a box; no one needs a warning next to it.
            warnings.simplefilter("ignore")
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(figures.STYLE)
            yield figure
    except FlatoutError:
        raise
    except ImportError as error:
        raise UsageError(
            "matplotlib-not-installed",
            "plots need the package matplotlib.",
            because=str(error),
            fix="pip install 'flatout[plots]'",
        ) from error
    # One that does not fit the NumPy next to it raises nearly anything as soon as it is imported.
    except Exception as error:
        raise RunFailed(
            "plots-not-drawn",
            f"{what} could not be drawn.",
            because=f"{type(error).__name__}: {error}",
            fix=fix,
        ) from error


def _drawn(
    run: Run, lines: Iterable[Metric], results: Results, figure: Any
) -> Iterator[tuple[str, bytes]]:
    """File names with PNG files."""
    curves = Curves(lines)
    best = run.best_validation
    title = run.id if run.status == "finished" else f"{run.id} ({run.status})"
    if curves.panels:
        yield "curves.png", png(figures.draw_curves(figure, curves, title, best))
    if curves.has_changing_rate:
        yield "learning_rate.png", png(figures.draw_learning_rate(figure, curves, title))
    for number, (line, report) in enumerate(zip(results.confusions, results.reports, strict=True)):
        ending = f"-{re.sub(r'[^A-Za-z0-9_-]+', '-', line.name)}.png" if number else ".png"
        if not report.num_samples:
            continue
        if len(line.labels) <= figures.MOST_CLASSES:
            yield f"confusion{ending}", png(figures.draw_confusion(figure, line, title))
        yield f"per_class{ending}", png(figures.draw_classes(figure, report, title))


def png(figure: Any) -> bytes:
    """A figure as a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_PIXELS_PER_INCH)
    return file.getvalue()


def replace_all(folder: Path, drawn: dict[str, bytes]) -> list[Path]:
    """Puts pictures into a folder, in place of those that it has."""
    with atomic_files.mapped_os_errors(folder):
        if drawn:
            folder.mkdir(exist_ok=True)
        for old in folder.glob("*.png"):
            if old.name not in drawn:
                old.unlink()
    for name, content in drawn.items():
        atomic_files.write_atomically(folder / name, content)
    return [folder / name for name in drawn]
