"""Shows the progress of a training in this process: a bar in a notebook, lines elsewhere."""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Callable
from typing import Any

from flatout.schema.run_lines import (
    EpochEnded,
    Event,
    Failed,
    Finished,
    Metric,
    Progress,
    Started,
    Stopped,
    Validated,
    Warned,
)
from flatout.schema.units import rate_text, seconds_text
from flatout.system.clock import elapsed_s

# Faster than this is unreadable, and each costs the kernel a message.
_LEAST_BETWEEN_S = 0.25


class Echo:
    """Prints each epoch; in a Jupyter kernel it also moves a bar, which is drawn in place.

    Args:
        draw: shows a text and how much is done (0 to 1, or None), in place of the one before;
            None where nothing can be drawn over.
    """

    def __init__(self, draw: Callable[[str, float | None], None] | None) -> None:
        self._draw = draw
        self._started: Started | None = None
        self._began_s = 0.0
        self._drawn_s = -_LEAST_BETWEEN_S
        self._progress: Progress | None = None
        self._untold: EpochEnded | None = None

    def take(self, line: Event | Metric) -> None:
        """Takes a line that was just written into the run's folder."""
        if isinstance(line, Started):
            self._started, self._began_s = line, elapsed_s()
            self._show(line, 0)
        elif isinstance(line, Progress):
            self._show_epoch(None)
            self._progress = line
            if elapsed_s() - self._drawn_s >= _LEAST_BETWEEN_S:
                self._show(line, line.epoch)
        elif isinstance(line, EpochEnded):
            self._show_epoch(None)
            self._untold = line
        elif isinstance(line, Validated):
            self._show_epoch(line)
            self._show(line, line.epoch)
        elif isinstance(line, Warned):
            print(f"{line.finding.severity}: {line.finding.problem}", flush=True)
        elif isinstance(line, Finished | Stopped | Failed):
            self._show_epoch(None)
            self._close(line)

    def _show_epoch(self, validated: Validated | None) -> None:
        """A line for the epoch that has ended, once it is known whether it is validated."""
        ended, self._untold = self._untold, None
        line = validated or ended
        if line is None:
            return
        parts = [f"epoch {line.epoch + 1}", f"step {line.step}"]
        if ended is not None and ended.loss is not None:
            parts.append(f"train loss {ended.loss:.4g}")
        metrics = validated.metrics.items() if validated is not None else ()
        parts += [f"{name} {value:.4g}" for name, value in metrics if value is not None]
        print("  ".join(parts), flush=True)

    def _show(self, line: Started | Progress | Validated, epoch: int) -> None:
        if self._draw is None or self._started is None:
            return
        self._drawn_s = elapsed_s()
        started, progress = self._started, self._progress
        parts = [f"epoch {epoch + 1}/{started.num_epochs}"] if started.num_epochs else []
        of = f"/{started.num_steps:,}" if started.num_steps else ""
        parts.append(f"step {line.step:,}{of}")
        if progress is not None and progress.loss is not None:
            parts.append(f"loss {progress.loss:.4g}")
        if progress is not None and progress.samples_per_s:
            parts.append(rate_text(progress.samples_per_s, started.unit))
        share = line.step / started.num_steps if started.num_steps else None
        num_done = line.step - started.step
        if started.num_steps and num_done:
            per_step_s = (self._drawn_s - self._began_s) / num_done
            parts.append(f"{seconds_text(per_step_s * (started.num_steps - line.step))} left")
        self._draw(" · ".join(parts), share)

    def _close(self, line: Finished | Stopped | Failed) -> None:
        if self._draw is None:
            return
        kind = type(line).__name__.lower()
        text = f"{kind} at step {line.step:,} · {seconds_text(elapsed_s() - self._began_s)}"
        all_steps = self._started.num_steps if self._started else None
        share = line.step / all_steps if all_steps else None
        self._draw(text, 1.0 if isinstance(line, Finished) else share)


def echo_here() -> Echo:
    """The echo for this process: a notebook, a terminal or none."""
    return Echo(_bar() if _is_kernel() else None)


def _is_kernel() -> bool:
    """Whether this process is a Jupyter kernel; IPython in a terminal is not."""
    # Where a kernel runs, it has imported this already.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _bar() -> Callable[[str, float | None], None]:
    """Draws in place, in the output of the cell that trains."""
    handle: Any = None

    def draw(text: str, share: float | None) -> None:
        nonlocal handle
        display = importlib.import_module("IPython.display").display
        value = "" if share is None else f' value="{share:.4f}"'
        bar = f'<progress max="1"{value} style="width: 16em; vertical-align: middle"></progress>'
        shown = {
            "text/plain": text,
            "text/html": f'{bar}<span style="margin-left: 1em">{html.escape(text)}</span>',
        }
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return draw
