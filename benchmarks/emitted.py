"""How fast the settings that `flatout tune --emit` prints are in the tools they are for.

    python benchmarks/emitted.py [--models mnist,resnet50] [--rounds 5] [--seconds 15]

For each model, a search finds the recipe. Then flatout's loop with the recipe, and Lightning, the
Hugging Face Trainer and Accelerate with the settings written from it, train in fresh processes that
take turns; each tool also as its documentation shows it, without settings. What the tools write
(logs, checkpoints, progress bars) is off. The same model, loss and optimizer, without a schedule;
milliseconds per update, and speeds as shares of the recipe's in the same round, with a 95 %
interval. The goal is 0.95 of the recipe's speed, where the tool can express the recipe; what it
cannot express is printed. Needs a quiet machine, lightning, transformers and accelerate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import msgspec
from disturbance import Disturbance
from never_slower import MODELS
from support import dated

from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Emit
from flatout.tune.statistics import speedup

HERE = Path(__file__).resolve().parent
GOAL = 0.95
TOOLS = {
    "lightning": ("lightning",),
    "hf": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
}
# Named for every recipe; they cost nothing during an update.
ALWAYS = {"nonfinite_loss", "out_of_memory", "checkpoint_every"}


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a tool is slower and nothing says why."""
    options = _options()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    tools = [tool for tool in TOOLS if all(find_spec(name) for name in TOOLS[tool])]
    for tool in TOOLS.keys() - set(tools):
        print(f"skipped   {tool}: needs {', '.join(TOOLS[tool])}")
    ways = ["recipe", *(f"{tool} {kind}" for tool in tools for kind in ("settings", "plain"))]
    measurements, details, is_reached = [], {}, True
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            tuned = searched(name, options.budget, Path(folder))
            lacks = written(name, tuned, Path(folder), options)
            taken: dict[str, list[float]] = {way: [] for way in ways}
            with Disturbance() as others:
                for number in range(options.rounds):
                    shift = number % len(ways)
                    for way in ways[shift:] + ways[:shift]:
                        taken[way].append(in_a_process(name, way, Path(folder), options.seconds))
        changed = msgspec.to_builtins(tuned.decision.changes)
        print(f"{name:12}{changed or 'defaults'}, others used {others.share:.2f} CPUs")
        for way, ms in taken.items():
            is_reached &= _reported(way, ms, taken["recipe"], lacks)
            conditions = {"model": name, "size": MODELS[name], "way": way, "recipe": changed}
            measurements.append(dated.measurement(f"{name}: {way}", "ms", tuple(ms), conditions))
        details[name] = {"not expressed": lacks, "others_cpus": others.share}
    path = dated.write_result("emitted", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if is_reached else 1


def _reported(way: str, ms: list[float], recipe_ms: list[float], lacks: dict[str, Any]) -> bool:
    """Prints a row; whether the way is as fast as it should be."""
    tool, _, kind = way.partition(" ")
    share = speedup(list(zip(recipe_ms, ms, strict=True)))
    row = f"  {way:22}{statistics.median(ms):10.2f} ms"
    row += f"   {share.middle:.3f} [{share.low:.3f}, {share.high:.3f}]"
    missing = lacks.get(tool, []) if kind == "settings" else []
    print(row + (f"   not expressed: {', '.join(missing)}" if missing else ""), flush=True)
    return kind != "settings" or share.middle >= GOAL or bool(missing)


def searched(name: str, budget: float, folder: Path) -> TunedRecipe:
    """The recipe that `flatout tune` finds, from an empty folder."""
    command = [sys.executable, "-m", "flatout", "tune", str(HERE / "never_slower_experiment.py"),
               "-s", f"name={name}", "-s", f"size={MODELS[name]}", "-s", "steps=5000",
               "--budget", str(budget), "--json"]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | {"FLATOUT_STATE": str(folder / "state")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return msgspec.json.decode(done.stdout, type=TunedRecipe)


def written(
    name: str, tuned: TunedRecipe, folder: Path, options: argparse.Namespace
) -> dict[str, list[str]]:
    """Writes each tool's settings, and the recipe; the fields that each cannot express."""
    from emitted_child import described

    from flatout.engine.session.session import build
    from flatout.engine.tuner.code_outline import outline
    from flatout.schema.experiment_spec import ExperimentSpec
    from flatout.schema.run import RunHeader
    from flatout.tune.emit.settings import settings

    header = RunHeader(
        id=name, created_at=0.0, flatout_version="", python="", spec=ExperimentSpec(name=name)
    )
    fields = {field: choice["value"] for field, choice in
              msgspec.to_builtins(tuned.recipe).items()}  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(fields), encoding="utf-8")
    lacks = {}
    for emit in get_args(Emit)[1:]:
        built = build(described(name), 0, tuned.recipe.device.value)
        text = settings(header, tuned, outline(built, tuned.recipe, emit), emit)
        (folder / f"{emit}.py").write_text(text, encoding="utf-8")
        if options.show:
            print(text)
        after = text.partition(" cannot express:\n")[2].splitlines()
        named = [line.split()[2] for line in after if line.startswith("# - ")]
        lacks[emit] = [field for field in dict.fromkeys(named) if field not in ALWAYS]
    return lacks


def in_a_process(name: str, way: str, folder: Path, seconds: float) -> float:
    """Milliseconds per update, in a fresh process."""
    command = [sys.executable, str(HERE / "emitted_child.py"), name, way, str(folder), str(seconds)]
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{way} failed:\n{done.stdout}{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["ms"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mnist,resnet50", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each way")
    parser.add_argument("--seconds", type=float, default=15.0, help="of updates in each process")
    parser.add_argument("--budget", type=float, default=90.0, help="of the search, in seconds")
    parser.add_argument("--show", action="store_true", help="print the settings")
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", help="output folder (default: results)"
    )
    options = parser.parse_args()
    options.models = options.models.split(",")
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
