"""Imported by Python itself at the start of a program that `flatout profile -- ...` has started.

Nothing is imported or changed until the program itself imports torch; flatout and msgspec come in
with its first step. Whatever goes wrong here must not reach the program: it is written down, and
the program continues without a profile. Needs nothing but Python.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# As `schema/script_profile.py: HookRequest` has it.
_VARIABLE = "FLATOUT_PROFILE"
_OPTIMIZER, _LOADER = "torch.optim.optimizer", "torch.utils.data.dataloader"
_KERAS = "keras.src.optimizers.base_optimizer"


class _Hook:
    """Notices what is imported, and passes the loop's events on to a recorder.

    request: see HookRequest.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.recorder: Any = None
        self.is_over = False
        # Whether flatout is being imported.
        self._is_importing = False
        self._handle: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Python's question for a module, as a finder of `sys.meta_path`."""
        if name in self.request["packages"]:
            if not self._is_importing:
                return None
            # flatout's own files belong together; of the others, the program's own come first.
            own = _found_by_others(self, name, path, target) if name != "flatout" else None
            return own or PathFinder.find_spec(name, [self.request["packages"][name]])
        if name not in (_OPTIMIZER, _KERAS) or self.is_over:
            return None
        spec = _found_by_others(self, name, path, target)
        if spec is not None and spec.loader is not None:
            _call_afterwards(spec.loader, self.imported)
        return spec

    def imported(self, module: Any) -> None:
        """The program has imported one of the modules."""
        if module.__name__ == _OPTIMIZER:
            self._handle = module.register_optimizer_step_post_hook(
                lambda optimizer, args, kwargs: self.stepped(optimizer)
            )
        else:
            _call_after_method(module.BaseOptimizer, "apply", self.stepped)

    def stepped(self, optimizer: Any) -> None:
        """A step of an optimizer has ended."""
        # Keras has other backends, too.
        if self.is_over or "torch" not in sys.modules:
            return
        try:
            if self.recorder is None:
                self._begin()
            self.recorder.step_ended(optimizer)
            self._note_problem()
        except Exception as error:  # noqa: BLE001 - the program must not notice
            self.fail(error)

    def _begin(self) -> None:
        self._is_importing = True
        try:
            from flatout.engine.profile.script_steps import ObservedLoop, StepRecorder
        finally:
            self._is_importing = False

        self.recorder = StepRecorder(
            self.request["subject"],
            self.report,
            num_steps=self.request["num_steps"],
            trace=self._path("trace") if self.request["has_trace"] else None,
        )
        ObservedLoop(self.recorder, closed=self.detach).__enter__()

    def detach(self) -> None:
        """All is over, and no step is being made."""
        if self._handle is not None:
            self._handle.remove()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def report(self, profile: Any) -> None:
        """Writes the report."""
        import msgspec

        self.is_over = True
        self._write("profile", msgspec.json.encode(profile))

    def fail(self, error: Exception) -> None:
        """Writes what has gone wrong, and does nothing any more."""
        self.is_over = True
        text = f"{type(error).__name__}: {error}"
        if self.recorder is not None:
            self.recorder.abandon(text)
        self._write("problem", json.dumps(text).encode())

    def _note_problem(self) -> None:
        """Writes why the recorder has given up, if it has."""
        if self.recorder.problem is not None:
            self.is_over = True
            self._write("problem", json.dumps(self.recorder.problem).encode())

    def finish(self) -> None:
        """The program ends."""
        if self.is_over:
            return
        try:
            if self.recorder is not None:
                self.recorder.stop()
                self._note_problem()
            # A report has set this.
            if not self.is_over and _OPTIMIZER in sys.modules:
                made = 0 if self.recorder is None else self.recorder.num_made
                self._write("short", json.dumps({"num_made": made}).encode())
        except Exception as error:  # noqa: BLE001 - the program must not notice
            self.fail(error)

    def _write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            with open(path + ".part", "wb") as file:
                file.write(content)
            os.replace(path + ".part", path)
        except OSError:
            pass  # The folder is gone: flatout was ended.

    def _path(self, name: str) -> str:
        return os.path.join(self.request["out"], f"{name}-{os.getpid()}.json")


def _found_by_others(own: object, name: str, path: Any, target: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not own and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _call_afterwards(loader: Any, call: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        try:
            call(module)
        except Exception:  # noqa: BLE001 - a torch without hooks is not profiled
            pass

    loader.exec_module = exec_module


def _call_after_method(owner: Any, name: str, call: Callable[[Any], None]) -> None:
    before = getattr(owner, name)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        result = before(self, *arguments, **named)
        call(self)
        return result

    setattr(owner, name, method)


def _own_spec() -> ModuleSpec | None:
    """The `sitecustomize` that the program would have had."""
    return PathFinder.find_spec("sitecustomize", sys.path)


def _begin() -> None:
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _FOLDER]
    try:
        request = json.loads(os.environ[_VARIABLE])
        hook = _Hook(request)
        sys.meta_path.insert(0, hook)
        atexit.register(hook.finish)
    except (KeyError, ValueError):
        pass  # The folder was put on the path without flatout.
    spec = _own_spec()
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
