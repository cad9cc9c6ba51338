"""The forward pass with its loss as one compiled function, by torch.compile; see docs/recipe.md.

Compiled as a whole or not at all: what torch would silently leave uncompiled is an error here. What
is drawn is drawn by torch's own generators, so dropout has the masks of the uncompiled step.

Codes of one function are kept by torch for its code object, at most eight of them; each compiled
loss has one of its own, so that those of a search do not evict each other.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.runtime.error_map import compiling_failed
from flatout.schema.recipe import Recipe
from flatout.system.process_env import missing_compiler

Compute = Callable[[nn.Module, Any], Any]

# Micro-batches of one size need one code. A second one comes of a module that sets something up
# when it is first called; more of them are a storm.
_MOST_GRAPHS = 3

_LEAST_CAPABILITY = (7, 0)


def why_not_compiled(device: torch.device) -> str | None:
    """The reason why torch cannot compile for this device; None if it can.

    torch itself finds out when it has traced the model.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed; torch needs it to compile for GPUs"
        if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
            return "Triton requires a GPU of compute capability 7.0 or higher"
        return None
    missing = missing_compiler()
    return f"no C++ compiler: `{missing}` not found" if missing else None


class Compiler:
    """Hands what torch has traced to its compiler, and counts.

    num_graphs: compiled so far. num_calls: of their forward code.

    Args:
        recipe: says how.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.num_graphs = 0
        self.num_calls = 0
        self._mode = recipe.compile_mode.value
        self._is_deterministic = recipe.deterministic.value

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled when it is called."""
        compiled: Callable[..., Any] = torch.compile(
            _with_code_of_its_own(function),
            backend=self._compile,
            fullgraph=True,
            # Never as torch does by itself, first for one size and then for all: what was compiled
            # would depend on the batches seen, and a resumed run has seen others.
            dynamic=self._mode == "dynamic",
        )
        return compiled

    def _compile(self, graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        if self.num_graphs == _MOST_GRAPHS:
            raise compiling_failed(
                f"it was compiled {_MOST_GRAPHS} times and would be again: shapes, or state that "
                "the model keeps, change from step to step"
            )
        options: dict[str, Any] = {
            # The draws of torch's own operators, not those of the compiler.
            "fallback_random": True,
            # No choice between kernels by timing them, where their results may differ.
            "deterministic": self._is_deterministic,
            # A step in a CUDA graph holds this code: it brings no graphs of its own.
            "triton.cudagraphs": False,
        }
        if self._mode == "max-autotune-no-cudagraphs":
            options |= torch._inductor.list_mode_options(self._mode)
        code: Any = compile_fx(graph, inputs, config_patches=options)
        # Counted now: torch may give up, and pass the same function traced in another way.
        self.num_graphs += 1

        def counted(*arguments: Any) -> Any:
            self.num_calls += 1
            return code(*arguments)

        return counted


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    assert isinstance(call, FunctionType)
    call.__code__ = call.__code__.replace()
    return call


class StepLoss:
    """The loss as a step computes it: compiled for whole micro-batches, if the recipe says so.

    What is left over at the end of an epoch is of another size: to compile for that, too, would
    take as long again. It is computed as it is written.

    compiler: of the forward pass and the loss; None where they are not compiled.

    Args:
        loss: the experiment's.
        recipe: says whether, and how.
    """

    def __init__(self, loss: Compute, recipe: Recipe) -> None:
        self._loss = loss
        self.adapt(recipe)

    def adapt(self, recipe: Recipe) -> None:
        """Continues with micro-batches of another size, or uncompiled."""
        self.compiler = Compiler(recipe) if recipe.compiled.value in ("loss", "both") else None
        self._compiled = self.compiler.compiled(self._loss) if self.compiler is not None else None
        has_any_size = recipe.compile_mode.value == "dynamic"
        self._size = None if has_any_size else recipe.micro_batch_size.value

    def renew(self, recipe: Recipe) -> None:
        """After hooks, which may change a number that was compiled in: the code of one such number
        is left to torch's guards, that of more would count as a storm.
        """
        if self.compiler is not None and self.compiler.num_graphs > 1:
            self.adapt(recipe)

    def __call__(self, model: nn.Module, batch: Any, size: int) -> Tensor | tuple[Tensor, Any]:
        """The loss of a micro-batch of so many samples."""
        compute = self._loss
        if self._compiled is not None and self._size in (None, size):
            compute = self._compiled
        result: Tensor | tuple[Tensor, Any] = compute(model, batch)
        return result

    def settled(self) -> AbstractContextManager[Any]:
        """Forbids compiling and recompiling inside, which would break a recording."""
        if self.compiler is None:
            return contextlib.nullcontext()
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
        return stance

    @contextlib.contextmanager
    def as_written(self) -> Iterator[None]:
        """Nothing of it is compiled: for who looks at its operators, which cannot be seen else."""
        compiled, self._compiled = self._compiled, None
        try:
            yield
        finally:
            self._compiled = compiled
