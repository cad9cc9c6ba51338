"""The profile of a training by Lightning or by Transformers' Trainer, as a callback of theirs.

Their classes are needed to make ours, so each is made when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import flatout
from flatout.engine.profile.script_steps import ObservedLoop, StepRecorder
from flatout.errors import UsageError

# Lightning has two names; a trainer takes the callbacks of its own one.
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


class LoopRecording:
    """A recorder while a training runs. num_steps: under the profiler; None: by their time."""

    def __init__(self, subject: str, num_steps: int | None) -> None:
        self._subject = subject
        self._num_steps = num_steps
        self._recorder: StepRecorder | None = None
        self._loop: ObservedLoop | None = None

    def begin(self, *, is_first_rank: bool) -> None:
        """The training begins; only its first rank is profiled, and only until there is a report.

        Transformers does not report that one has failed: it ends here.
        """
        self.end()
        has_report = self._recorder is not None and self._recorder.has_report
        if is_first_rank and not has_report:
            self._recorder = StepRecorder(
                self._subject, flatout.print_profile, num_steps=self._num_steps
            )
            self._loop = ObservedLoop(self._recorder)
            self._loop.__enter__()

    def end(self) -> None:
        """It has ended, or failed."""
        if self._recorder is None or self._loop is None:
            return
        self._recorder.stop()
        self._loop.close()
        self._loop = None
        if (text := self._recorder.too_short_text()) is not None:
            print(text)


@functools.cache
def lightning_profiler() -> type:
    """The class `flatout.LightningProfiler`.

    Raises:
        UsageError: lightning-not-installed.
    """
    names = sorted(_LIGHTNING, key=lambda name: name not in sys.modules)
    for name in names:
        try:
            base: Any = importlib.import_module(name).Callback
            break
        except ImportError as error:
            problem = error
    else:
        raise UsageError(
            "lightning-not-installed",
            "flatout.LightningProfiler needs the package lightning.",
            because=str(problem),
            fix="pip install lightning",
        )

    class LightningProfiler(base):  # type: ignore[misc]
        """Profiles the first steps of `Trainer(callbacks=[flatout.LightningProfiler()])`.

        Args:
            num_steps: under the profiler; None chooses by their time.
        """

        def __init__(self, num_steps: int | None = None) -> None:
            super().__init__()
            self._recording = LoopRecording("the Lightning training", num_steps)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Begins."""
            self._recording.begin(is_first_rank=trainer.is_global_zero)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Ends."""
            self._recording.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Ends."""
            self._recording.end()

    return LightningProfiler


@functools.cache
def transformers_profiler() -> type:
    """The class `flatout.TransformersProfiler`.

    Raises:
        UsageError: transformers-not-installed.
    """
    try:
        base: Any = importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise UsageError(
            "transformers-not-installed",
            "flatout.TransformersProfiler needs the package transformers.",
            because=str(error),
            fix="pip install 'flatout[language]'",
        ) from error

    class TransformersProfiler(base):  # type: ignore[misc]
        """Profiles the first steps of `Trainer(callbacks=[flatout.TransformersProfiler()])`.

        Args:
            num_steps: under the profiler; None chooses by their time.
        """

        def __init__(self, num_steps: int | None = None) -> None:
            self._recording = LoopRecording("the Trainer's training", num_steps)

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Begins."""
            self._recording.begin(is_first_rank=state.is_world_process_zero)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Ends."""
            self._recording.end()

    return TransformersProfiler
