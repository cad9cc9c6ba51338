"""What each rank of a test runs: experiments one after the other, or one that is taken up.

train_all.py FOLDER all|spread NAME        all those experiments, and two epochs of that one
train_all.py FOLDER EPOCHS NAME [OTHER]    the same run, to so many epochs; then a new one
train_all.py FOLDER new NAME ...           new runs of those
train_all.py FOLDER twice NAME ...         new runs, each of which is taken up for more epochs
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from rank_experiments import ALL
from spread_experiments import COUPLED, FAILING, SPREAD, UNLIKE
from support.ranks_runs import new_run, ranks_here, train

from flatout.system.exit_code import end
from flatout.system.store.run_folder import RunFolder

folder, mode, *names = Path(sys.argv[1]), *sys.argv[2:]
known = ALL | SPREAD | UNLIKE | FAILING | COUPLED
ranks = ranks_here()
if mode in ("all", "spread"):
    for name, (make, fixed) in (ALL if mode == "all" else SPREAD).items():
        train(new_run(folder / name, ranks, **fixed), make(), ranks)
    make, fixed = known[names[0]]
    short = dataclasses.replace(make(), steps=None, epochs=2)
    train(new_run(folder / "moved", ranks, **fixed), short, ranks)
elif mode == "new":
    for name in names:
        make, fixed = known[name]
        train(new_run(folder / name, ranks, **fixed), make(), ranks)
elif mode == "twice":
    for name in names:
        make, fixed = known[name]
        train(new_run(folder / name, ranks, **fixed), make(), ranks)
        train(RunFolder(folder / name), make(), ranks, epochs=2)
else:
    make, _ = known[names[0]]
    longer = dataclasses.replace(make(), steps=None, epochs=2)
    train(RunFolder(folder / "moved"), longer, ranks, epochs=int(mode))
    for name in names[1:]:
        make, fixed = known[name]
        train(new_run(folder / name, ranks, **fixed), make(), ranks)
end(0)
