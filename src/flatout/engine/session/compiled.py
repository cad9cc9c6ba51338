"""The compiled parts of a session, and whether its batches suit them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.engine.step.compiled_loss import Compiler
from flatout.engine.tensors.nested import tensors_in
from flatout.errors import UsageError

if TYPE_CHECKING:
    from flatout.engine.session.session import Session

# Batches that are looked at.
_NUM_SEEN = 4


def compilers(session: Session) -> list[Compiler]:
    """The compilers of a session's loss and optimizer step, if its recipe compiles them."""
    of_loss = session.loss.compiler if session.loss is not None else None
    return [
        compiler for compiler in (of_loss, session.optimizer_steps.compiler) if compiler is not None
    ]


@contextlib.contextmanager
def as_written(session: Session) -> Iterator[None]:
    """A context in which nothing of a session is compiled, so that its operators can be seen."""
    with contextlib.ExitStack() as stack:
        if session.loss is not None:
            stack.enter_context(session.loss.as_written())
        stack.enter_context(session.optimizer_steps.as_written())
        yield


def check_shapes(session: Session) -> None:
    """Checks some batches: each new shape would be compiled separately.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    recipe = session.recipe
    if recipe.compiled.value not in ("loss", "both") or recipe.compile_mode.value == "dynamic":
        return
    shapes = {
        tuple(tuple(tensor.shape) for tensor in tensors_in(batch))
        for update in itertools.islice(session.feed.updates(0, 0), _NUM_SEEN)
        for batch, size in update
        if size == recipe.micro_batch_size.value
    }
    if len(shapes) > 1:
        raise UsageError(
            "recipe-does-not-fit",
            "batch shapes change from step to step, and each would be compiled separately.",
            fix="pad them to one shape in `collate`, or use compile_mode=dynamic",
        )
