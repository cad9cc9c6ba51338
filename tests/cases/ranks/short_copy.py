"""What each rank of a test runs: trainings in which memory runs out in the copy for a checkpoint.

short_copy.py FOLDER    writes what each rank has seen of each into FOLDER/NAME.RANK.json
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from spread_experiments import deep
from support.oom_injection import SAID
from support.ranks_runs import Together, new_run, ranks_here, train
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.errors import FlatoutError
from flatout.system.exit_code import end

WHOLE = {"checkpoint_every": 2}
PARTS = {**WHOLE, "sharding": "full"}
# The recipe, which rank is short of memory, and whether in each copy from the second one on. The
# last one fails, which ends the connection of the ranks.
CASES: dict[str, tuple[dict[str, Any], int | None, bool]] = {
    "whole": (WHOLE, None, False),
    "whole-once": (WHOLE, 0, False),
    "whole-always": (WHOLE, 0, True),
    "parts": (PARTS, None, False),
    "parts-once": (PARTS, 0, False),
    "parts-other": (PARTS, 1, False),
    "parts-always": (PARTS, 0, True),
}


_VIEWS = (torch.ops.aten.detach.default, torch.ops.aten.view.default, torch.ops.aten.alias.default)


class Short(TorchDispatchMode):
    """The first operation of a copy finds no memory."""

    def __init__(self, *, is_short: bool, is_always: bool) -> None:
        super().__init__()
        self._is_short, self._is_always = is_short, is_always
        self._num_copies = 0
        self._is_armed = False
        self.failed: list[str] = []

    def saving(self) -> None:
        """A copy is made next."""
        self._num_copies += 1
        is_due = self._num_copies == 2 or (self._is_always and self._num_copies > 2)
        self._is_armed = self._is_short and is_due

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What only looks at memory that is there asks for none.
        if self._is_armed and func.namespace == "aten" and func not in _VIEWS:
            self._is_armed = False
            self.failed.append(str(func))
            raise RuntimeError(SAID)
        return func(*args, **(kwargs or {}))


def digest(state: dict[str, Tensor]) -> str:
    """Of weights, put together where each rank has a part of them."""
    found = hashlib.sha256()
    for value in state.values():
        whole: Any = value.full_tensor() if hasattr(value, "full_tensor") else value
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def seen(name: str) -> dict[str, Any]:
    """What this rank sees of a training."""
    fixed, rank, is_always = CASES[name]
    short = Short(is_short=rank == ranks.rank, is_always=is_always)
    ranks.saving = short.saving  # type: ignore[method-assign]
    run = new_run(folder / name, ranks, **fixed)
    result: dict[str, Any] = {"error": None, "digests": None}
    experiment = dataclasses.replace(deep(), generate=None, steps=8)
    try:
        with short:
            model = train(run, experiment, ranks)
        result["digests"] = ranks.all_gather(digest(model.state_dict()))
    except FlatoutError as error:
        result["error"] = error.rule
    return {**result, "failed": short.failed}


folder = Path(sys.argv[1])
ranks = ranks_here()
assert isinstance(ranks, Together)
for name in CASES:
    (folder / f"{name}.{ranks.rank}.json").write_text(json.dumps(seen(name)))
end(0)
