"""Makes one of several ranks run out of memory, a thousand times, and checks that all continue.

    python campaigns/oom_ranks.py [--trials 1000] [--ranks 2] [--seed 0]

In each trial the ranks train one of four small models on the CPU, and an operation of the third to
fifth update raises the error of torch's allocator, on one rank or on all: the seed decides which
model, ranks and operation. It may be any of forward, backward, the copy of gradients, the vote,
clipping, optimizer, the averages of buffers, and the checkpoint between them; the collectives
themselves are left out, since they allocate nothing.

Counted: trials that finished on all ranks, those that had to go back to a checkpoint, those whose
weights are the same on all ranks, and those whose weights are the same as without an error, apart
from rounding (not checked with dropout, which draws other numbers for smaller parts). If the ranks
wait for each other for more than a minute, the campaign ends with an error.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from flatout.engine import Experiment
from flatout.engine.ranks.protocol import RankGroup
from flatout.errors import FlatoutError
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.run_lines import Checkpointed, Event
from flatout.system import atomic_files
from flatout.system.store.run_folder import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import oom_models
from support import dated, ranks_runs
from support.dated import Measurement
from support.oom_injection import Injection, between

RESULTS = Path(__file__).with_name("results")
# Calls of the loss in training: from the third update into the fifth, in micro-batches of a share.
_FIRST, _LAST = 3, 6
_LIMIT_S = "60"
_CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class OfRank(Injection):
    """An out-of-memory error at one operation of this rank; collectives do not count."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            return operation(*args, **(kwargs or {}))
        return super().__torch_dispatch__(operation, types, args, kwargs)


def main() -> int:
    """Runs all trials and writes the result; 1 if one did not finish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sharding", choices=["none", "full"], default="none", help="of the models"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        run_trials(options)
        return 0
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"FLATOUT_RANKS_LIMIT_S": _LIMIT_S, "FLATOUT_STATE": str(folder / "state")}
        command = [__file__, "--as-rank", str(folder), "--trials", str(options.trials)]
        command += ["--seed", str(options.seed), "--sharding", options.sharding]
        problem = None
        try:
            ranks_runs.run_ranks(options.ranks, command, folder, limit_s=4 * 3600.0)
        except RuntimeError as error:
            problem = str(error)
        rows = _rows(folder / "rows.jsonl")
    return _report(rows, problem, options, time.perf_counter() - began_s)


def run_trials(options: argparse.Namespace) -> None:
    """What each rank does: all trials in a row."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder, ranks = options.as_rank, ranks_runs.ranks_here()
    dice = random.Random(options.seed)
    fixed = {"sharding": options.sharding, "checkpoint_every": 2}
    use = {name: oom_models.USE.get(name, {}) | fixed for name in oom_models.NAMES}
    known = {name: _reference(folder, name, use[name], ranks) for name in oom_models.NAMES}
    # Each out-of-memory error scans all objects; leave out those of torch and other libraries.
    gc.collect()
    gc.freeze()
    for number in range(options.trials):
        name = dice.choice(oom_models.NAMES)
        weights, num_operations = known[name]
        at = dice.randint(1, num_operations)
        short = dice.choice([*range(ranks.size), None])
        row = {"trial": number, "model": name, "at": at, "short": short}
        injection = OfRank(at if short in (None, ranks.rank) else None)
        place = folder / f"trial{number}"
        row |= _trial(place, name, use[name], ranks, injection, weights)
        if ranks.is_first:
            with open(folder / "rows.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")


def _experiment(name: str, injection: Injection | None, ranks: RankGroup) -> Experiment:
    def watched(loss: Any) -> Any:
        if injection is None:
            return loss
        counted = between(loss, injection, _FIRST, _LAST)

        def outside(model: Any, batch: Any) -> Any:
            # Rank 0's check before the training is not a part of it: what fails in it is
            # tried in another way.
            is_asking = isinstance(ranks, ranks_runs.Together) and ranks.is_asking
            return (loss if is_asking else counted)(model, batch)

        return outside

    experiment = oom_models.experiment(name, watched)
    # So that a share of the last batch has two samples: BatchNorm takes no single one.
    return dataclasses.replace(experiment, train_data=lambda: oom_models.points(44, seed=1))


def _reference(
    folder: Path, name: str, use: dict[str, Any], ranks: RankGroup
) -> tuple[dict[str, torch.Tensor], int]:
    """Weights of a training without errors, and how many of its operations can fail."""
    injection = OfRank()
    model = _trained(folder / f"reference-{name}", name, use, ranks, injection)
    return model, ranks.all_gather(injection.num_operations)[0]


def _trained(
    folder: Path, name: str, use: dict[str, Any], ranks: RankGroup, injection: Injection
) -> dict[str, torch.Tensor]:
    run = ranks_runs.new_run(folder, ranks, **use)
    if isinstance(ranks, ranks_runs.Together):
        # A second error, while going back to a checkpoint, ends the training: on several
        # ranks as on one. Both may run out of memory in the same step, though.
        ranks.settling = injection.end
    with injection:
        model = ranks_runs.train(run, _experiment(name, injection, ranks), ranks)
    return {key: _whole(value).clone() for key, value in model.state_dict().items()}


def _whole(value: Any) -> torch.Tensor:
    """The complete values, gathered if each rank has a shard of them."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach()


def _trial(
    folder: Path,
    name: str,
    use: dict[str, Any],
    ranks: RankGroup,
    injection: Injection,
    known: dict[str, torch.Tensor],
) -> dict[str, Any]:
    try:
        weights = _trained(folder, name, use, ranks, injection)
    except FlatoutError as error:
        return {"problem": f"{injection.failed}: {error}"}
    digest = hashlib.sha256()
    for value in weights.values():
        digest.update(value.numpy().tobytes())
    digests = ranks.all_gather(digest.hexdigest())
    failed = ranks.all_gather(injection.failed)
    is_close = all(torch.allclose(value, known[key], **_CLOSE) for key, value in weights.items())
    adaptations: tuple[OomAdaptation, ...] = ()
    num_uncopied = 0
    if ranks.is_first:
        run = ranks_runs.RunFolder(folder)
        adaptations = read_run(run).adaptations
        lines = atomic_files.read_lines(run.events, Event)
        num_uncopied = sum(isinstance(one, Checkpointed) and not one.is_copied for one in lines)
        shutil.rmtree(folder)
    return {
        "problem": None,
        "failed": next(filter(None, failed), None),
        # Checkpoints for whose copy there was no memory: they were written without one.
        "num_uncopied": num_uncopied,
        "is_same_on_all": len(set(digests)) == 1,
        "is_close": is_close or name == "dropout",
        "is_in_place": all(one.is_in_place for one in adaptations),
        "num_adaptations": len(adaptations),
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _report(
    rows: list[dict[str, Any]], problem: str | None, options: argparse.Namespace, seconds: float
) -> int:
    machine = dated.read_machine()
    went_on = [row for row in rows if row["problem"] is None]
    counts = {
        "trials": len(rows),
        "short": sum(row["failed"] is not None for row in went_on),
        "finished": len(went_on),
        "in place": sum(row["failed"] is not None and row["is_in_place"] for row in went_on),
        "same on all ranks": sum(row["is_same_on_all"] for row in went_on),
        "as without the error": sum(row["is_close"] for row in went_on),
    }
    print(f"machine   {dated.machine_text(machine)}")
    for name, count in counts.items():
        print(f"{name:28}{count:6d}")
    said = collections.Counter(row["problem"] for row in rows if row["problem"])
    for text, count in said.most_common(5):
        print(f"{count:6d}  {text}")
    if problem:
        print(problem)
    measurements = [
        *(Measurement(name=name, value=count, unit="1") for name, count in counts.items()),
        Measurement(name="duration", value=seconds, unit="s"),
    ]
    bad = [row for row in rows if row["problem"] or not (row["is_same_on_all"] and row["is_close"])]
    details = {"ranks": options.ranks, "seed": options.seed, "bad": bad[:20], "problem": problem}
    path = dated.write_result("oom_ranks", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if not bad and problem is None and len(rows) == options.trials else 1


if __name__ == "__main__":
    sys.exit(main())
