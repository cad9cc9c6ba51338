"""What `--on` costs per step, compared with a plain DDP script under torchrun.

    python benchmarks/scale.py [--rounds 7] [--ranks 2] [--steps 120] [--only torchrun,local,ray]

Four million weights on CPUs, one thread per rank, so it needs as many free cores as ranks. The
contestants take turns, each in fresh processes: `ddp` is `scale_ddp.py` under torchrun; `torchrun`,
`local` and, if this interpreter has Ray, `ray` (on a Ray of this machine that is already running)
are `flatout train --on` with the same model, rows, batch and optimizer. Compared are the times of
the last two thirds of the steps, round by round; start-up is from the command to the end of the
first step. The cost of flatout's missing overlap is included: it sends gradients after the backward
pass, DDP during it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from flatout.schema.run_lines import Metric, Progress
from flatout.system import atomic_files
from flatout.system.process_env import loopback_variables
from flatout.system.store.run_folder import RunFolder
from flatout.tune.statistics import speedup

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
HERE = Path(__file__).parent
GOAL = 1.05
CONTESTANTS = ("ddp", "torchrun", "local", *(["ray"] if find_spec("ray") else []))
# A Ray that ends with its standard input.
RAY = """
import sys, ray
ray_context = ray.init(
    "local", num_cpus=int(sys.argv[1]), include_dashboard=False, logging_level="ERROR"
)
print(ray_context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


def main() -> int:
    """Measures in turns, prints a table, writes the result; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--only", type=lambda text: text.split(","), default=CONTESTANTS)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    names = ["ddp", *(name for name in options.only if name != "ddp")]
    rounds: list[dict[str, dict[str, float]]] = []
    with ray_here(options.ranks) if "ray" in names else contextlib.nullcontext():
        for number in range(options.rounds):
            # The order rotates, so that none always follows an idle moment.
            shift = number % len(names)
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(
                    {
                        name: measure(name, options.ranks, options.steps, Path(folder))
                        for name in names[shift:] + names[:shift]
                    }
                )
            said = "  ".join(f"{name} {rounds[-1][name]['step_s'] * 1e3:.1f} ms" for name in names)
            print(f"round {number + 1}/{options.rounds}   {said}", file=sys.stderr, flush=True)
    return report(names, rounds, options)


@contextlib.contextmanager
def ray_here(num_cpus: int) -> Iterator[None]:
    """A Ray on this machine, named by RAY_ADDRESS; it accepts clients with its token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    with subprocess.Popen(
        [sys.executable, "-c", RAY, str(num_cpus)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        os.environ["RAY_ADDRESS"] = process.stdout.readline().strip()
        try:
            yield
        finally:
            del os.environ["RAY_ADDRESS"], os.environ["RAY_AUTH_MODE"]


def measure(name: str, num_ranks: int, num_steps: int, folder: Path) -> dict[str, float]:
    """Seconds per step, and from the command to the end of the first one."""
    environment = os.environ | loopback_variables()
    environment |= {"OMP_NUM_THREADS": "1", "FLATOUT_STATE": str(folder)}
    began_at = time.time()
    first = num_steps // 3
    if name == "ddp":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        command += [str(num_ranks), str(HERE / "scale_ddp.py"), str(num_steps), str(first)]
        reported = json.loads(output_of(command, environment).strip().splitlines()[-1])
        return {"step_s": reported["step_s"], "startup_s": reported["first_at"] - began_at}
    run_id = f"scale-{name}"
    command = [sys.executable, "-m", "flatout", "train", str(HERE / "scale_model.py")]
    command += ["-s", f"steps={num_steps}", "--on", f"{name}:{num_ranks}", "--name", run_id]
    command += ["--use", "num_threads=1", "--device", "cpu"]
    output_of(command, environment)
    lines = atomic_files.read_lines(RunFolder(folder / "runs" / run_id).metrics, Metric)
    reported_of = [line for line in lines if isinstance(line, Progress)]
    begin = next(line for line in reported_of if line.step >= first)
    end = reported_of[-1]
    # Lines come ten a second at most: from one to another, as many steps as they tell.
    step_s = (end.at - begin.at) / (end.step - begin.step)
    early = reported_of[0]
    return {
        "step_s": step_s,
        "startup_s": early.at - (early.step - 1) * step_s - began_at,
    }


def output_of(command: list[str], environment: dict[str, str]) -> str:
    """The standard output of a command; if it fails, an error with all of its output."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def report(
    names: list[str], rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace
) -> int:
    """Prints and writes the results; 1 if a step costs more than the goal."""
    machine = dated.read_machine()
    conditions = {"ranks": options.ranks, "steps": options.steps}
    print(f"machine   {dated.machine_text(machine)}")
    print(f"{'':10}{'step':>10}{'start-up':>12}   over ddp [95 %]")
    measurements: list[Measurement] = []
    is_missed = False
    for name in names:
        steps = tuple(one[name]["step_s"] for one in rounds)
        starts = tuple(one[name]["startup_s"] for one in rounds)
        measurements += [
            dated.measurement(f"{name}: step", "s", steps, conditions),
            dated.measurement(f"{name}: start-up", "s", starts, conditions),
        ]
        said = ""
        if name != "ddp" and len(rounds) > 1:
            over = speedup([(one[name]["step_s"], one["ddp"]["step_s"]) for one in rounds])
            said = f"x{over.middle:.3f} [{over.low:.3f}, {over.high:.3f}]"
            is_missed |= over.high > GOAL
            measurements.append(
                Measurement(
                    name=f"{name}: step over ddp",
                    value=over.middle,
                    unit="1",
                    spread=(over.low, over.high),
                    conditions=conditions,
                )
            )
        step_s, start_s = statistics.median(steps), statistics.median(starts)
        print(f"{name:10}{step_s * 1e3:7.1f} ms{start_s:10.2f} s   {said}")
    path = dated.write_result("scale", machine, measurements, {"goal": GOAL}, options.out)
    print(f"written   {path}")
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
