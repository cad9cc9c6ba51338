"""torch's compiler, imported by a process only once something in it compiles.

The first update of any of torch's optimizers imports `torch._dynamo`: as long as torch itself
takes. It asks two things of it, and without a compiled function both do nothing: to break a graph
here, and to leave a function out of graphs. A stand-in answers those two. Any other attribute of
it loads the compiler, which takes its place.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from flatout.engine.runtime.fast_import import COMPILER, import_quickly

# Where torch's wrapper (torch/_compile.py) keeps what `disable` has given it.
_KEPT = "__dynamo_disable"


def defer_compiler() -> None:
    """Puts a stand-in where torch looks for its compiler; nothing where it is imported already."""
    torch = sys.modules["torch"]
    if COMPILER in sys.modules:
        return
    spec = importlib.util.find_spec(COMPILER)
    if spec is None or spec.submodule_search_locations is None:
        return
    standin = _StandIn(spec)
    sys.modules[COMPILER] = standin
    sys.meta_path.insert(0, standin.finder)
    torch._dynamo = standin  # type: ignore[attr-defined]


def defer_compiler_on_cpu() -> bool:
    """Defers the compiler where there is no GPU; returns whether it did.

    With one, the compiler might be imported while a CUDA graph is captured, which was never tried.
    """
    import torch

    if torch.cuda.is_available():
        return False
    defer_compiler()
    return True


def use_deterministic_algorithms(is_on: bool, *, warn_only: bool = False) -> None:
    """Does the same as torch's function, without importing the compiler to notify it."""
    torch = sys.modules["torch"]
    if isinstance(sys.modules.get(COMPILER), _StandIn):
        torch._C._set_deterministic_algorithms(is_on, warn_only=warn_only)
    else:
        torch.use_deterministic_algorithms(is_on, warn_only=warn_only)


class _StandIn(ModuleType):
    """Answers what eager updates ask of the compiler; loads it for anything else."""

    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        super().__init__(COMPILER, "Stands in for torch's compiler until something compiles.")
        own = self.__dict__
        own["__spec__"], own["__path__"] = spec, spec.submodule_search_locations
        own["finder"] = _Finder(self)
        own["_lock"] = threading.RLock()
        own["_left_out"] = []
        own["_real"] = None

    def graph_break(self, *_: object, **__: object) -> None:
        """There is no graph."""

    def disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """The function itself for torch's wrapper, which requests it again once it is loaded."""
        if fn is None or options != {"wrapping": False} or self._real is not None:
            return self.load().disable(fn, *args, **options)
        self._left_out.append(fn)
        return fn

    def load(self) -> ModuleType:
        """The compiler."""
        with self._lock:
            if self._real is None and sys.modules.get(COMPILER) is not self:
                # What it imports asks for it.
                return sys.modules[COMPILER]
            if self._real is None:
                self._give_way()
                import_quickly(COMPILER)
                self.__dict__["_real"] = sys.modules[COMPILER]
                self._catch_up()
            real: ModuleType = self._real
            return real

    def _give_way(self) -> None:
        del sys.modules[COMPILER]
        sys.meta_path.remove(self.finder)
        # torch looks for it by itself.
        vars(sys.modules["torch"]).pop("_dynamo", None)

    def _catch_up(self) -> None:
        """Replays to the compiler the calls it has missed."""
        for function in self._left_out:
            vars(function).pop(_KEPT, None)
        torch = sys.modules["torch"]
        if torch.are_deterministic_algorithms_enabled():
            warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            torch.use_deterministic_algorithms(True, warn_only=warn_only)

    def __getattr__(self, name: str) -> Any:
        # What copies, prints or unpickles modules asks for names that no module has.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.load(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self.load())


class _Finder(importlib.abc.MetaPathFinder):
    """Loads the compiler when a module below it is imported.

    Python would import that module a second time, for it has looked for it before.
    """

    def __init__(self, standin: _StandIn) -> None:
        self._standin = standin

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that the compiler has loaded; else None, and other finders look."""
        if not fullname.startswith(COMPILER + "."):
            return None
        self._standin.load()
        module = sys.modules.get(fullname)
        if module is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Imported(module))


class _Imported(importlib.abc.Loader):
    """Gives a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Only puts its own spec back."""
        module.__spec__ = self._spec
