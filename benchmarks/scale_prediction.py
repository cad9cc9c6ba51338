"""How close `flatout cluster predict` is to the time that several ranks then take.

    python benchmarks/scale_prediction.py [--rounds 5] [--ranks 2] [--steps 240]

Each round, in fresh processes on CPUs with one thread per rank: the link (an exchange of as many
bytes as the model's gradients, and one of a single number, by gloo over the loopback), the model of
`scale_model.py` on one rank, in whole batches and in micro-batches of a rank's share, what the
command predicts from these runs and that link, and the same training on several ranks. A step is
the mean over a run, since that is what the command reads. Needs as many free cores as ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from flatout.schema.run_lines import Metric, Progress
from flatout.system import atomic_files
from flatout.system.process_env import loopback_variables
from flatout.system.store.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scale import HERE, output_of
from scale_model import BATCH_SIZE, num_gradient_bytes
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
GOAL = 0.15


def main() -> int:
    """Measures, prints a table, writes the result; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(one_round(options.ranks, options.steps, Path(folder)))
        said = "  ".join(f"{name} {value * 1e3:.1f} ms" for name, value in rounds[-1].items())
        print(f"round {number + 1}/{options.rounds}   {said}", file=sys.stderr, flush=True)
    return report(rounds, options)


def one_round(num_ranks: int, num_steps: int, folder: Path) -> dict[str, float]:
    """Seconds: of a step on one rank, in whole and in shares; of both exchanges; of a step on
    several ranks, predicted and measured.
    """
    environment = os.environ | loopback_variables()
    environment |= {"OMP_NUM_THREADS": "1", "FLATOUT_STATE": str(folder)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    command += [str(HERE / "scale_link.py"), str(num_gradient_bytes())]
    link = json.loads(output_of(command, environment).strip().splitlines()[-1])
    alone_s = trained(["--tune", "off", "--name", "alone"], num_steps, environment)
    share = ["--tune", "off", "--use", f"micro_batch_size={BATCH_SIZE // num_ranks}"]
    shares_s = trained([*share, "--name", "shares"], num_steps, environment)
    # As the command wants them: what each rank sends over the link in a second, and a message.
    sent_bits = 2 * (num_ranks - 1) / num_ranks * num_gradient_bytes() * 8
    latency_us = link["small_s"] / (2 * (num_ranks - 1)) * 1e6
    rate = f"{sent_bits / (link['large_s'] - link['small_s']) / 1e6:.0f}Mbps"
    command = [sys.executable, "-m", "flatout", "cluster", "predict", "alone", "--json"]
    command += ["--workers", str(num_ranks), "--link", rate, "--latency", f"{latency_us:.1f}"]
    rows = json.loads(output_of(command, environment))["rows"]
    [predicted_s] = [row["step_s"] for row in rows if row["workers"] == num_ranks]
    on = ["--on", f"local:{num_ranks}", "--name", "together"]
    together_s = trained(on, num_steps, environment)
    own = {"alone": alone_s, "shares": shares_s}
    return {**own, **link, "predicted": predicted_s, "measured": together_s}


def trained(arguments: list[str], num_steps: int, environment: dict[str, str]) -> float:
    """Mean seconds per step of a run by `flatout train`."""
    command = [sys.executable, "-m", "flatout", "train", str(HERE / "scale_model.py")]
    command += ["-s", f"steps={num_steps}", "--use", "num_threads=1", "--device", "cpu", *arguments]
    output_of(command, environment)
    folder = RunFolder(Path(environment["FLATOUT_STATE"]) / "runs" / arguments[-1])
    reported = [
        one for one in atomic_files.read_lines(folder.metrics, Metric) if isinstance(one, Progress)
    ]
    return (reported[-1].at - reported[0].at) / (reported[-1].step - reported[0].step)


def report(rounds: list[dict[str, float]], options: argparse.Namespace) -> int:
    """Prints and writes the results; 1 if the prediction is further off than the goal."""
    machine = dated.read_machine()
    conditions = {"ranks": options.ranks, "steps": options.steps}
    print(f"machine   {dated.machine_text(machine)}")
    measurements: list[Measurement] = []
    for name in rounds[0]:
        samples = tuple(one[name] for one in rounds)
        measurements.append(dated.measurement(name, "s", samples, conditions))
        print(f"{name:10}{statistics.median(samples) * 1e3:8.2f} ms"
              f"   [{min(samples) * 1e3:.2f}, {max(samples) * 1e3:.2f}]")  # fmt: skip
    errors = tuple(one["predicted"] / one["measured"] - 1 for one in rounds)
    measurements.append(
        dated.measurement("predicted over measured, less 1", "1", errors, conditions)
    )
    error = statistics.median(errors)
    print(f"predicted {error:+.1%} of what was measured [{min(errors):+.1%}, {max(errors):+.1%}]")
    path = dated.write_result(
        "scale-prediction", machine, measurements, {"goal": GOAL}, options.out
    )
    print(f"written   {path}")
    return 0 if abs(error) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
