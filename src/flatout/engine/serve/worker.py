"""The process that answers requests: `python -m flatout.engine.serve.worker`.

A replica of `flatout serve`. Messages come and go as MessagePack on standard input and output
(`schema/serve_protocol.py`); what the experiment's own code prints goes to standard error. It ends
when its standard input does.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from flatout.engine.runtime.fast_import import import_quickly
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.serve.answering import Answers, DeviceLost, model_failed, refused_input
from flatout.engine.serve.batch_times import measured_again
from flatout.engine.serve.replica_model import ReplicaModel
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.serve_protocol import (
    Answered,
    Batch,
    BatchDone,
    BatchItem,
    Cancel,
    ItemRefused,
    Measure,
    Measured,
    Piece,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStart,
    ReplicaStarting,
    ToReplica,
)
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.message_frames import FrameStdio
from flatout.system.scratch_files import ScratchFiles


def main() -> int:
    """Serves until the parent closes the pipe; gives the exit code."""
    stdio = FrameStdio(ToReplica)
    try:
        start = stdio.read()
        if not isinstance(start, ReplicaStart):
            return 1
        with contextlib.ExitStack() as stack:
            _serve(stdio, start, stack)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = _failure(error)
        with contextlib.suppress(BrokenPipeError):
            stdio.write(failure)
        return failure.exit_code
    return 0


def _serve(stdio: FrameStdio, start: ReplicaStart, stack: contextlib.ExitStack) -> None:
    stdio.write(ReplicaStarting(what="loading the model"))
    model = _opened(start, stack)
    steps = model.warm_up(start)
    while True:
        try:
            stdio.write(ReplicaStarting(what=next(steps)))
        except StopIteration as ended:
            described = ended.value
            break
    stdio.write(ReplicaReady(model=described, findings=tuple(model.findings)))
    answers = Answers(model, described.max_samples, model.usual_keys)
    measure = partial(measured_again, model, described.batch_s, start.latency_s)
    Replies(stdio, model, answers, measure).serve()


def _opened(start: ReplicaStart, stack: contextlib.ExitStack) -> ReplicaModel:
    """The model, with no more loaded than its form needs."""
    ending = Path(start.model).suffix.lower()
    if ending == ".onnx":
        from flatout.engine.serve.onnx_model import open_onnx

        return open_onnx(start)
    import_quickly("torch")
    if ending == ".pt2":
        from flatout.engine.serve.program_model import open_program

        return open_program(start)
    # Setting a flag of torch would import its compiler, which takes as long as torch itself.
    defer_compiler_on_cpu()
    from flatout.engine.serve.run_model import RunModel

    return RunModel(start, stack.enter_context(ScratchFiles()), stack)


class Replies:
    """Answers what comes, until the pipe is closed and all was answered.

    Args:
        stdio: where messages come from.
        model: what streams.
        answers: answers batches.
        measure: measures batches again.
    """

    def __init__(
        self, stdio: FrameStdio, model: ReplicaModel, answers: Answers,
        measure: Callable[[], Iterator[str | Measured]],
    ) -> None:  # fmt: skip
        self._stdio = stdio
        self._model = model
        self._answers = answers
        self._measure = measure
        self._measuring: Iterator[str | Measured] | None = None
        self._streams: deque[_PieceStream] = deque()

    def serve(self) -> None:
        """Handles messages; between two of them, each stream in turn gives a piece, and a size of
        batches is measured.
        """
        while True:
            if self._streams or self._measuring:
                is_here, message = self._stdio.read_waiting()
            else:
                is_here, message = True, self._stdio.read()
            if isinstance(message, Batch):
                self._answer(message)
            elif isinstance(message, Cancel):
                self._cancel(message.id)
            elif isinstance(message, Measure):
                self._measuring = self._measure()
            elif is_here:
                while self._streams:
                    self._advance()
                return
            if self._streams:
                self._advance()
            if self._measuring is not None:
                step = next(self._measuring)
                if isinstance(step, Measured):
                    self._measuring = None
                    self._stdio.write(step)

    def _answer(self, batch: Batch) -> None:
        streamed = [item for item in batch.items if item.is_stream]
        others = [item for item in batch.items if not item.is_stream]
        for answer in self._answers.of(others, batch.max_samples):
            try:
                self._stdio.write(answer, is_flushed=False)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                # The experiment's `encode` has made something that no message can hold.
                self._stdio.write(model_failed(answer.id, error), is_flushed=False)
        answers = self._answers
        done = BatchDone(
            first=batch.items[0].id if batch.items else None,
            num_samples=answers.num_samples,
            compute_s=answers.compute_s,
            decode_s=answers.decode_s,
            memory_bytes=self._model.memory_bytes(),
        )
        if streamed:
            waiting = _Unfinished(done, len(streamed))
            for item in streamed:
                self._streams.append(_PieceStream(item, self._model.stream(item.input), waiting))
        else:
            self._stdio.write(done)

    def _advance(self) -> None:
        """A piece of the stream that has waited longest."""
        stream = self._streams.popleft()
        began_s = elapsed_s()
        try:
            piece = next(stream.pieces, None)
        except Exception as error:
            if self._model.failure_kind(error) == "device":
                raise DeviceLost from error
            traceback.print_exc()
            refused = refused_input if not stream.has_pieces else model_failed
            self._finish(stream, refused(stream.item.id, error))
            return
        stream.unfinished.compute_s += elapsed_s() - began_s
        if piece is None:
            self._finish(stream, Answered(id=stream.item.id))
        else:
            stream.has_pieces = True
            self._stdio.write(Piece(id=stream.item.id, text=piece))
            self._streams.append(stream)

    def _cancel(self, number: int) -> None:
        for stream in self._streams:
            if stream.item.id == number:
                self._streams.remove(stream)
                self._finish(stream, Answered(id=number))
                return

    def _finish(self, stream: _PieceStream, answer: Answered | ItemRefused) -> None:
        self._stdio.write(answer, is_flushed=False)
        unfinished = stream.unfinished
        unfinished.num_left -= 1
        if unfinished.num_left == 0:
            self._stdio.write(unfinished.done(), is_flushed=False)
        self._stdio.flush()


class _Unfinished:
    """A batch whose streams are not all at their end. num_left: of them."""

    def __init__(self, done: BatchDone, num_streams: int) -> None:
        self._done = done
        self._num_streams = num_streams
        self.num_left = num_streams
        self.compute_s = done.compute_s

    def done(self) -> BatchDone:
        """What is said at its end."""
        count = self._done.num_samples + self._num_streams
        return BatchDone(
            first=self._done.first, num_samples=count, compute_s=self.compute_s,
            decode_s=self._done.decode_s, memory_bytes=self._done.memory_bytes,
        )  # fmt: skip


class _PieceStream:
    """A streamed answer that is not at its end."""

    def __init__(self, item: BatchItem, pieces: Iterator[str], unfinished: _Unfinished) -> None:
        self.item = item
        self.pieces = pieces
        self.unfinished = unfinished
        self.has_pieces = False


def _failure(error: BaseException) -> ReplicaFailed:
    """The message that says why nothing more comes. What was not answered, another replica gets."""
    known = error if isinstance(error, FlatoutError) else None
    if isinstance(error, DeviceLost):
        known = RunFailed(
            "gpu-state-lost",
            "this process can no longer use the GPU.",
            because=str(error.__cause__).partition("\n")[0],
            fix="nothing to do: the server starts a new replica",
        )
    elif known is None and "torch" in sys.modules:
        from flatout.engine.runtime.error_map import to_flatout_error

        known = to_flatout_error(error)
    if known is None:
        return ReplicaFailed(finding=internal_error(error), exit_code=3)
    return ReplicaFailed(finding=finding_from(known), exit_code=known.exit_code)


if __name__ == "__main__":
    end(main())
