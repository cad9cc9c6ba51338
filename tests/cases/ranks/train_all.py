"""What each rank of a test runs: experiments one after the other, then some that are taken up."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from rank_experiments import ALL, rows
from ranks_runs import new_run, ranks_here, train

from flatout.system.runs import RunFolder

folder, mode = Path(sys.argv[1]), sys.argv[2]
ranks = ranks_here()
if mode in ("all", *ALL):
    for name in ALL if mode == "all" else [mode]:
        make, fixed = ALL[name]
        train(new_run(folder / name, ranks, **fixed), make(), ranks)
else:
    experiment = dataclasses.replace(rows(), steps=None, epochs=2)
    if mode == "begin":
        train(new_run(folder / "moved", ranks), experiment, ranks)
    else:
        train(RunFolder(folder / "moved"), experiment, ranks, epochs=int(mode))
