"""`%%flatout` in a notebook: a cell is run as ever, and the steps in it are profiled."""

from __future__ import annotations

from typing import Any

import flatout
from flatout.engine.profile.script_steps import ObservedLoop, StepRecorder

_USAGE = "usage: %%flatout [STEPS]   (STEPS: under the profiler; chosen by their time if left out)"


def register(shell: Any) -> None:
    """Gives an IPython shell the cell magic."""

    def profile_cell(line: str, cell: str) -> None:
        text = line.strip()
        if text and not (text.isdecimal() and int(text) > 0):
            print(_USAGE)
            return
        recorder = StepRecorder(
            "the cell", flatout.print_profile, num_steps=int(text) if text else None
        )
        with ObservedLoop(recorder):
            shell.run_cell(cell)
        recorder.stop()
        if (problem := recorder.too_short_text()) is not None:
            print(problem)

    shell.register_magic_function(profile_cell, magic_kind="cell", magic_name="flatout")
