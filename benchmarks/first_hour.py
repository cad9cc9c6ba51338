"""The first hour of a new user, played on a terminal of 80 columns, in an empty home.

    python3 benchmarks/first_hour.py [--neighbours 0,1] [--only tour,kinds,times] [--before SRC]

- tour: every command of README's tour, in order;
- kinds: `flatout new` for each kind of data, then train, then predict on unseen data;
- times: `flatout train digits` from start to end, and commands that should answer immediately; with
  `--before`, the `src` folder of another flatout, both in turns, in a random order.

A neighbour is a process that uses the CPU without a pause. Checked: exit codes, lines longer than
80 columns, words broken in two, seconds. Commands, addresses and paths must not be broken, so that
they can be copied. Writes a result file, and prints what is wrong. POSIX only.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import measurement, read_machine, write_result
from support.terminal import Played, broken_words, clean_environment, known_words, play, too_long

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).resolve().parents[1]
SEED = 20261123
QUICK = (["--help"], [], ["runs"], ["show", "last"])
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_NAME = re.compile(r"Save\s+it\s+as\s+`([\w.]+)`")
_SENTENCES = ("the cat sat on the mat", "a dog lay on the rug", "one bird flew over the house")


class Hour:
    """Plays commands in a folder of its own, and keeps their output.

    Args:
        place: an empty folder.
    """

    def __init__(self, place: Path) -> None:
        self.folder, self.home = place / "work", place / "home"
        self.folder.mkdir(parents=True)
        self.home.mkdir()
        self.played: list[Played] = []

    def run(self, *words: str, source: Path | None = None) -> Played:
        """Plays `flatout` with these words."""
        argv = [sys.executable, "-m", "flatout", *words]
        shown = shlex.join(["flatout", *words])
        environment = clean_environment(self.home, source)
        done = play(argv, self.folder, environment, shown=shown)
        self.played.append(done)
        print(f"{done.seconds:7.2f} s  rc {done.exit_code}  {shown}", flush=True)
        return done


def tour_of(readme: str) -> Iterator[tuple[str, str]]:
    """The tour: ("command", words) and ("file name", its text), in README's order."""
    tour = readme[readme.index("## A short tour") : readme.index("## What it promises")]
    for block in _BLOCK.finditer(tour):
        language, text = block.groups()
        if language == "python":
            name = _NAME.findall(tour[: block.start()])[-1]
            yield name, text
        for line in text.splitlines() if language == "console" else ():
            if line.startswith("$ flatout"):
                yield "command", line.removeprefix("$ flatout ")


def play_tour(hour: Hour) -> None:
    """Plays README's tour, in order."""
    for name, text in tour_of((ROOT / "README.md").read_text(encoding="utf-8")):
        if name == "command":
            hour.run(*shlex.split(text))
        else:
            (hour.folder / name).write_text(text, encoding="utf-8")


def play_kinds(hour: Hour) -> dict[str, str]:
    """`new`, `train` and `predict` for each kind of data; returns skipped ones, with reasons."""
    left_out = {}
    makers = {"images": "PIL", "csv": None, "parquet": "pyarrow", "text": None, "synthetic": None}
    for kind, package in makers.items():
        if package is not None and find_spec(package) is None:
            left_out[kind] = f"needs the package {package}"
            continue
        options, asked = _made(kind, hour.folder)
        name = f"my_{kind}"
        new = hour.run("new", name, "--yes", *options)
        file = next(hour.folder.glob(f"*{kind}*.py"), None)
        if new.exit_code or file is None:
            continue
        hour.run("train", file.name, "-s", "steps=20", "--name", f"{kind}-run")
        if asked is not None:
            hour.run("predict", f"{kind}-run", asked)
    return left_out


def _made(kind: str, folder: Path) -> tuple[list[str], str | None]:
    """Options of `new` for data that is created here, and an input to predict."""
    if kind == "synthetic":
        return [], None
    if kind == "text":
        (folder / "book.txt").write_text("\n".join(_SENTENCES * 400), encoding="utf-8")
        return ["--task", "language-model", "--data", "text", "--path", "book.txt"], "the cat"
    if kind == "images":
        from PIL import Image

        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (folder / "pictures" / name).mkdir(parents=True)
            for number in range(40):
                image = Image.new("RGB", (32, 32), tuple(one + number for one in colour))
                image.save(folder / "pictures" / name / f"{number}.png")
        Image.new("RGB", (32, 32), (215, 50, 50)).save(folder / "fresh.png")
        return ["--data", "images", "--path", "pictures"], "fresh.png"
    dice = random.Random(SEED)
    rows = [{"age": dice.randint(18, 80), "income": dice.randint(10, 90)} for _ in range(400)]
    bought = [{**row, "buys": "yes" if row["income"] > row["age"] else "no"} for row in rows]
    _write_table(folder / f"people.{kind}", bought)
    _write_table(folder / f"fresh.{kind}", rows[:3])
    return ["--data", kind, "--path", f"people.{kind}", "--target", "buys"], f"fresh.{kind}"


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        return
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def play_times(hour: Hour, rounds: int, before: Path | None) -> dict[str, dict[str, list[float]]]:
    """Seconds of commands, for this flatout and the previous one, in turns."""
    sources = {"now": ROOT / "src", **({"before": before} if before else {})}
    seconds: dict[str, dict[str, list[float]]] = {}
    dice = random.Random(SEED)
    hour.run("train", "digits", "--epochs", "1")
    for _ in range(rounds):
        for words in (["train", "digits"], *QUICK):
            name = shlex.join(["flatout", *words])
            for which in dice.sample(sorted(sources), len(sources)):
                done = hour.run(*words, source=sources[which])
                seconds.setdefault(name, {}).setdefault(which, []).append(done.seconds)
    return seconds


def faults(played: list[Played], words: set[str]) -> list[str]:
    """What is wrong with the output of each command."""
    found = []
    for one in played:
        if one.exit_code:
            found.append(f"{one.command}: exit code {one.exit_code}")
        found += [f"{one.command}: {len(line)} columns: {line}" for line in too_long(one.lines)]
        found += [f"{one.command}: broken: {word}" for word in broken_words(one.lines, words)]
    return found


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Runs that many processes that use the CPU without a pause."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def main() -> int:
    """Plays the hour, with and without neighbours; writes the results."""
    parser = argparse.ArgumentParser(description="The first hour of a new user, on a terminal.")
    parser.add_argument(
        "--neighbours", default="0,1", help="comma-separated numbers of neighbours, one pass each"
    )
    parser.add_argument(
        "--only", default="tour,kinds,times", help="comma-separated parts of the hour"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the times")
    parser.add_argument(
        "--before", type=Path, help="src folder of another flatout to compare times with"
    )
    parser.add_argument("--suffix", default="", help="suffix of the result file's name")
    options = parser.parse_args()
    parts = options.only.split(",")
    words = known_words([*(ROOT / "src/flatout").rglob("*.py"), ROOT / "README.md"])
    measured, wrong, left_out, commands = [], [], {}, []
    for count in map(int, options.neighbours.split(",")):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, neighbours(count):
            hour = Hour(Path(place))
            conditions = {"neighbours": count}
            if "tour" in parts:
                play_tour(hour)
            if "kinds" in parts:
                left_out = play_kinds(hour)
            commands += [[count, one.command, one.exit_code, round(one.seconds, 2)]
                         for one in hour.played]  # fmt: skip
            wrong += [f"[{count}] {one}" for one in faults(hour.played, words)]
            if "times" in parts:
                for name, of in play_times(hour, options.rounds, options.before).items():
                    for which, seconds in of.items():
                        case = {**conditions, "flatout": which}
                        measured.append(measurement(name, "s", tuple(seconds), case))
                    if "before" in of:
                        pairs = zip(of["now"], of["before"], strict=True)
                        ratios = tuple(now / before for now, before in pairs)
                        title = f"{name}, now / before"
                        measured.append(measurement(title, "", ratios, conditions))
            # Pictures of the last training may still be being drawn.
            time.sleep(3)
    for one in measured:
        print(f"{one.name} {one.conditions}: {one.value:.2f} {one.unit} "
              f"({min(one.samples):.2f} to {max(one.samples):.2f})")  # fmt: skip
    print("\n".join(wrong) or "no problems found")
    path = write_result(
        f"first-hour{options.suffix}", read_machine(), measured,
        {"commands": commands, "faults": wrong, "left out": left_out}, RESULTS,
    )  # fmt: skip
    print(f"written to {path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
