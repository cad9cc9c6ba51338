"""How long `flatout setup` takes for four frameworks, and to run again.

Every environment is created from the package index, in empty folders, and tested by training
steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import machine_text, measurement, read_machine, write_result

RESULTS = Path(__file__).with_name("results")
FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax")
AGAIN_LIMIT_S = 2.0


def main() -> int:
    """Creates them, runs the same again, writes both results; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--again", type=int, default=5, help="number of repeated runs")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    names = tuple(options.frameworks) or FRAMEWORKS
    with tempfile.TemporaryDirectory(prefix="flatout-setup-") as folder:
        first_s, first_output_s, made = set_up(names, Path(folder))
        again = tuple(set_up(names, Path(folder))[0] for _ in range(options.again))
    machine = read_machine()
    print(machine_text(machine))
    for one in made:
        print(f"{one['name']:12} {one['version']:16} Python {one['python_version']:6} "
              f"{one['size_bytes'] / 1e6:8.0f} MB  "
              f"loss {one['proof']['losses'][0]:.4f} -> {one['proof']['losses'][-1]:.4f}, "
              f"off by {one['proof']['deviation']:.0e}")  # fmt: skip
    conditions = {"frameworks": names, "device": "cpu"}
    measurements = [
        measurement("made and proved", "s", (first_s,), conditions),
        measurement("first output", "s", (first_output_s,), conditions),
        measurement("run again", "s", again, conditions),
    ]
    for one in measurements:
        print(f"{one.name:16} {one.value:8.2f} s")
    path = write_result("setup-environments", machine, measurements,
                        {"environments": [_kept(one) for one in made]}, options.out)  # fmt: skip
    print(path)
    return int(len(made) != len(names) or max(again, default=0.0) > AGAIN_LIMIT_S)


def set_up(names: tuple[str, ...], folder: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """One run: seconds to its end and to its first output, and the resulting environments."""
    environment = {
        **os.environ, "FLATOUT_ENVIRONMENTS": str(folder / "environments"),
        "FLATOUT_CACHE": str(folder / "cache"), "UV_CACHE_DIR": str(folder / "uv"),
        "PIP_CACHE_DIR": str(folder / "pip"),
    }  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "setup", *names, "--cpu", "--yes", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr and process.stdout
    first = process.stderr.readline()
    first_output_s = time.perf_counter() - began
    rest = process.stderr.read()
    text = process.stdout.read()
    if process.wait() != 0:
        sys.exit(f"flatout setup ended with {process.returncode}:\n{first}{rest}")
    return time.perf_counter() - began, first_output_s, json.loads(text)["environments"]


def _kept(made: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "version", "cuda", "index", "python_version", "installer", "size_bytes")
    return {**{name: made[name] for name in names}, "num_packages": len(made["pins"]),
            "proof": made["proof"]}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
