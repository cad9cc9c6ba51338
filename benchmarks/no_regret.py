"""Does `flatout tune` ever make a training slower, and how close is it to the best recipe?

    python benchmarks/no_regret.py [--models wide_mlp,charlm] [--quick] [--numerics strict]
    python benchmarks/no_regret.py --epochs 5000 --budget 180 --no-oracle
    python benchmarks/no_regret.py --no-oracle --no-peers --lot 3 --neighbours none,loop,training

For each model of a declared list: the plain loop, flatout's defaults, what `flatout tune` chooses
with an empty cache, the best of a declared grid of at most 48 recipes (all measured briefly, the
best five again), Lightning and Accelerate. All are measured in turns, in several fresh processes.
An interrupted benchmark continues with the next model. Settings that must pay off within a run,
such as compiling, need a long one (`--epochs`) and time (`--budget`). `--neighbours` searches and
measures next to other programs; `--lot` takes that many models, drawn at random.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from flatout.schema.recipe import parse_field
from flatout.schema.tuning import Decision
from flatout.system import atomic_files
from flatout.system.process_env import worker_environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from neighbours import KINDS, chosen, neighbours
from no_regret_models import CHOSEN, MODELS, QUICK, Model
from no_regret_report import (
    MOST_DISTURBED,
    Measured,
    Screened,
    Searched,
    beside_others,
    disturbed_share,
    summary,
    table,
)
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
HERE = Path(__file__).resolve().parent
PEERS = ("lightning", "accelerate")
NUM_OF_ORACLE = 5
NUM_RETAINED = 2
DATA_FIELDS = ("data_path", "loader_workers", "loader_persistent", "loader_prefetch")


def main() -> int:
    """Measures what is missing, prints the table, writes the result."""
    options = _options()
    results = []
    for name in options.models:
        for kind in options.neighbours:
            done = _read(options.work, _key(name, kind, options))
            if done is not None:
                print(f"{name}: already measured ({options.work})", file=sys.stderr)
            else:
                with neighbours(kind):
                    done = measured(MODELS[name], kind, options)
                work = atomic_files.Lines(options.work)
                work.append(done, is_synced=True)
                work.close()
            results.append(done)
            print(table([done]).splitlines()[-1], flush=True)
    return report(results, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument("--quick", action="store_true", help="use two models and shorter blocks")
    parser.add_argument("--numerics", default="default", choices=["strict", "default", "fast"])
    parser.add_argument(
        "--recipe", action="append", metavar="FIELD=VALUE",
        help="measure this recipe instead of the choice of a search",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, help="epochs of the run to speed up")
    parser.add_argument("--budget", type=int, help="time limit of each search, in seconds")
    parser.add_argument("--no-oracle", action="store_true", help="skip the grid")
    parser.add_argument("--no-peers", action="store_true", help="skip Lightning and Accelerate")
    parser.add_argument("--neighbours", default="none", help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--lot", type=int, help="number of randomly drawn models")
    parser.add_argument("--seed", type=int, default=0, help="seed of --lot")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes per model")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--work", type=Path, default=Path("no_regret.jsonl"),
                        help="file with the results so far")  # fmt: skip
    options = parser.parse_args()
    names = options.models.split(",") if options.models else QUICK if options.quick else CHOSEN
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if options.lot is not None:
        names = random.Random(options.seed).sample(sorted(names), options.lot)
    options.models = list(names)
    options.neighbours = chosen(options.neighbours)
    options.block_s, options.num_blocks = (0.1, 4) if options.quick else (0.15, 6)
    options.screen_s = 0.05 if options.quick else 0.12
    return options


def _key(name: str, kind: str, options: argparse.Namespace) -> str:
    """What must be equal for a result to be reused."""
    asked = (options.numerics, options.recipe, options.epochs, options.budget, options.no_oracle)
    return " ".join(map(str, (name, kind, *asked, options.processes, options.block_s)))


def _read(work: Path, key: str) -> Measured | None:
    lines = atomic_files.read_lines(work, Measured) if work.exists() else []
    return next((line for line in lines if line.key == key), None)


def measured(model: Model, kind: str, options: argparse.Namespace) -> Measured:
    """Everything about one model next to these neighbours."""
    searched = search(model, options)
    screened = screen(model, options)
    begin_s = time.perf_counter()
    recipes = {
        f"oracle {rank}": one["fields"]
        for rank, one in enumerate(screened.found[:NUM_OF_ORACLE], start=1)
    }
    # It cannot be undone within a process, so the grid, which is looked at in one, has it not.
    recipes |= {
        f"{name}, memory retained": {**fields, "allocator": "retain"}
        for name, fields in list(recipes.items())[:NUM_RETAINED]
    }
    if searched.defaults is not None:
        recipes = {"defaults": searched.defaults} | recipes
    if searched.fields is not None:
        data = {name: value for name, value in searched.fields.items() if name in DATA_FIELDS}
        recipes = {"chosen": searched.fields, "data": data} | recipes
    finals = [one_process(model, recipes, number, options) for number in range(options.processes)]
    blocks: dict[str, list[list[float]]] = {}
    for final in finals:
        for name, row in final["blocks"].items():
            blocks.setdefault(name, []).append(row)
    return Measured(
        key=_key(model.name, kind, options),
        model=model.name,
        neighbours=kind,
        searched=searched,
        screened=screened,
        # One that failed in some process is not compared.
        blocks={name: rows for name, rows in blocks.items() if len(rows) == len(finals)},
        others=[share for final in finals for share in final["others"]],
        problems={name: text for final in finals for name, text in final["problems"].items()},
        final_s=time.perf_counter() - begin_s,
    )


def screen(model: Model, options: argparse.Namespace) -> Screened:
    """Measures all recipes of the grid briefly, in a fresh process."""
    if options.no_oracle:
        return Screened(found=[], problems=[], took_s=0.0)
    begin_s = time.perf_counter()
    child = Child(model, worker_environment())
    reported = child.ask(screen=options.screen_s, numerics=options.numerics)
    child.close()
    return Screened(**reported, took_s=time.perf_counter() - begin_s)


def search(model: Model, options: argparse.Namespace) -> Searched:
    """What `flatout tune` chooses with an empty cache, run from the command line."""
    if options.recipe:
        pairs = [item.split("=", 1) for item in options.recipe]
        fields = {name: parse_field(name, value) for name, value in pairs}
        return Searched(fields=fields, search_s=0.0, why="given")
    argv = [sys.executable, "-m", "flatout", "tune", *model.arguments(), "--json"]
    argv += ["--numerics", options.numerics]
    for name in ("epochs", "budget"):
        if (value := getattr(options, name)) is not None:
            argv += [f"--{name}", str(value)]
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        done = subprocess.run(
            argv, env=os.environ | {"FLATOUT_STATE": folder},
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        took_s = time.perf_counter() - begin_s
    if done.returncode:
        sys.exit(f"{model.name}: flatout tune failed:\n{done.stdout}{done.stderr}")
    decision = msgspec.convert(json.loads(done.stdout)["decision"], Decision)
    # Without a trial, there is only the plain loop's rung.
    defaults = decision.rungs[1].changes if len(decision.rungs) > 1 else {}
    return Searched(
        fields=None if decision.is_default else decision.changes,
        defaults={name: value for name, value in defaults.items() if name != "data_path"},
        search_s=took_s,
        why=decision.why,
    )


class Child:
    """A fresh process with contestants of one model.

    Args:
        model: whose.
        environment: its variables.
    """

    def __init__(self, model: Model, environment: dict[str, str]) -> None:
        self._name = model.name
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "no_regret_child.py"), model.name],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True,
        )  # fmt: skip

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer; if the child dies, the benchmark ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            reported = self._log.read().decode(errors="replace")
            sys.exit(f"{self._name}: the measuring process died:\n{reported}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()
        self._log.close()


def one_process(
    model: Model, recipes: dict[str, dict[str, Any]], number: int, options: argparse.Namespace
) -> dict[str, Any]:
    """All contestants in turns: one fresh process for plain loops, one for flatout's loop.

    Recipes with settings that a process applies only once have a third. Only one process works at
    any time.
    """
    peers = ["plain", *(name for name in PEERS if importlib.util.find_spec(name))]
    peers = peers[:1] if options.no_peers else peers
    # Those that people write have the environment that people have.
    theirs, ours, apart = (
        Child(model, environment)
        for environment in (dict(os.environ), worker_environment(), worker_environment())
    )
    homes = dict.fromkeys(peers, theirs) | {
        name: apart if fields.get("allocator", "system") != "system" else ours
        for name, fields in recipes.items()
    }
    problems: dict[str, str] = {}
    for name, home in homes.items():
        answer = home.ask(make=name, fields=recipes.get(name))
        if "problem" in answer:
            problems[name] = answer["problem"]
    names = [name for name in homes if name not in problems]
    blocks: dict[str, list[float]] = {name: [] for name in names}
    others = []
    for turn in range(options.num_blocks):
        # The order rotates, so that none always follows the same one.
        shift = (turn * 2 + number) % len(names)
        for name in names[shift:] + names[:shift]:
            answer = homes[name].ask(time=name, seconds=options.block_s)
            if "problem" in answer:
                sys.exit(f"{model.name}: {name}: {answer['problem']}")
            blocks[name].append(answer["update_s"])
            others.append(answer["others"])
    for child in (theirs, ours, apart):
        child.close()
    return {"blocks": blocks, "others": others, "problems": problems}


def report(results: list[Measured], options: argparse.Namespace) -> int:
    """Prints the table and the goals, and writes the result; 1 if a goal is missed."""
    machine = dated.read_machine()
    found = summary(results)
    print(f"\nmachine   {dated.machine_text(machine)}")
    print("versions  " + " · ".join(f"{k} {v}" for k, v in dated.versions("torch", *PEERS).items()))
    print(f"numerics  {options.numerics}\n\n{table(results)}\n")
    for text, is_reached in found.goals():
        print(f"{'reached' if is_reached else 'MISSED'}   {text}")
    for text, is_reached in beside_others(results):
        print(f"{'reached' if is_reached else 'MISSED'}   {text}")
    print(f"data path  x{found.data_mean:.2f}, the rest x{found.rest_mean:.2f}")
    disturbed = disturbed_share(results)
    print(f"disturbed {disturbed:.0%} of the blocks")
    if disturbed > MOST_DISTURBED:
        print("NOT QUIET: other programs used too much CPU time for reliable ratios")
    print("took      " + _costs(results))
    measurements = [
        Measurement(
            name=f"{one.model}: {name}", value=one.update_s(name), unit="s/update",
            samples=tuple(value for row in rows for value in row),
            spread=None,
            conditions={"numerics": options.numerics, "neighbours": one.neighbours},
        )
        for one in results for name, rows in one.blocks.items()
    ]  # fmt: skip
    details = {
        "summary": msgspec.to_builtins(found),
        "goals": dict([*found.goals(), *beside_others(results)]),
        "models": [msgspec.to_builtins(one) for one in results],
        "disturbed_share": disturbed,
    }
    print(
        f"written   {dated.write_result('no-regret', machine, measurements, details, options.out)}"
    )
    goals = [*found.goals(), *beside_others(results)]
    return 0 if all(is_reached for _, is_reached in goals) else 1


def _costs(results: list[Measured]) -> str:
    """The duration of each part of the benchmark."""
    parts = {
        "searches": sum(one.searched.search_s for one in results),
        "oracles": sum(one.screened.took_s for one in results),
        "finals": sum(one.final_s for one in results),
    }
    return ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in parts.items())


if __name__ == "__main__":
    sys.exit(main())
