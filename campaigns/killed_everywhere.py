"""Kills a process before each of its file operations in turn, and checks what is left.

    python campaigns/killed_everywhere.py [--only NAME] [--limit-s 600 --seed 0]

A run's worker (three experiments), an ingestion, the creation of an environment, and a plan of
changes with its undo first run once without a kill. Then, for every N in an order drawn by the seed
and until all are done or the time is up, the process is killed (SIGKILL) before its Nth file
operation in its folder, and is resumed, started again, or undone. Its child processes are not
killed. Identical means: kept weights, the last checkpoint's tensors, shards, an environment's and
the machine's files, byte by byte. Needs fork, so it does not run on Windows.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.system.store.run_folder import RunFolder, read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
HERE = Path(__file__).parent
# What changes files, as CPython's audit hooks name it; reading needs no kill.
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link",
           "os.symlink", "shutil.rmtree", "open"}  # fmt: skip
EXPERIMENTS = (("digits",), ("mlp",), (str(HERE / "hard_to_resume.py"), "-s", "width=16"))
LENGTH = ("--tune", "off", "--steps", "6", "--use", "checkpoint_every=2")

Files = dict[str, str]


@dataclass(frozen=True)
class Attack:
    """Something to be killed.

    folder: only operations in it count. prepare: creates the initial state. act: is killed. mend:
    what a user does next. found: what is compared.
    """

    name: str
    folder: Path
    prepare: Callable[[], None]
    act: Callable[[], None]
    mend: Callable[[], None]
    found: Callable[[], Files]
    # What is found when nothing was killed, where that is not what `act` alone leaves.
    wanted: Callable[[], Files] | None = None


def main() -> int:
    """Carries out all attacks, prints each, writes the result; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="only attacks whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="only every Nth operation")
    parser.add_argument(
        "--limit-s", type=float, help="time limit per attack; started kills are finished"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    began_s = time.perf_counter()
    place = Path(tempfile.mkdtemp(prefix="killed-everywhere-"))
    os.environ |= {
        "HOME": str(place),
        "FLATOUT_STATE": str(place / "state"),
        "OMP_NUM_THREADS": "1",
    }
    problems: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    totals: dict[str, int] = {}
    for attack in attacks(place, options.only or ""):
        draw = functools.partial(drawn, options.every, options.seed, options.limit_s)
        totals[attack.name], counts[attack.name], problems[attack.name] = carry_out(attack, draw)
        print(f"{attack.name:24}{counts[attack.name]:5d} kills, {totals[attack.name]} operations, "
              f"{len(problems[attack.name])} not identical", flush=True)  # fmt: skip
        for one in problems[attack.name]:
            print(f"  {one}", flush=True)
    num_bad = sum(map(len, problems.values()))
    machine = dated.read_machine()
    measurements = [
        Measurement(name=f"kills, {name}", value=n, unit="1") for name, n in counts.items()
    ]
    measurements += [
        Measurement(name="not identical afterwards", value=num_bad, unit="1"),
        Measurement(name="duration", value=time.perf_counter() - began_s, unit="s"),
    ]
    details = {"every": options.every, "limit_s": options.limit_s, "seed": options.seed,
               "operations": totals, "problems": problems}  # fmt: skip
    name = re.sub("[^a-z]+", "-", f"killed-everywhere {options.only or ''}".lower()).strip("-")
    path = dated.write_result(name, machine, measurements, details, options.out)
    print(f"written   {path}")
    if not num_bad:
        shutil.rmtree(place, ignore_errors=True)
    # Where nothing was killed, nothing was shown.
    return 0 if counts and all(counts.values()) and not num_bad else 1


def attacks(place: Path, only: str) -> Iterator[Attack]:
    """All attacks whose name contains this text."""
    for words in EXPERIMENTS:
        name = f"train {Path(words[0]).stem}"
        if only in name:
            yield training(name, words, place)
    others = {"ingest": ingestion, "environment": making, "apply": applying, "undo": undoing}
    for name, make in others.items():
        if only in name:
            yield make(place / name)


def drawn(every: int, seed: int, limit_s: float | None, num_operations: int) -> Iterator[int]:
    """The file operation before which the process is killed next, counted from 1."""
    numbers = range(every, num_operations + 1, every)
    end_s = time.perf_counter() + limit_s if limit_s else math.inf
    for number in random.Random(seed).sample(numbers, len(numbers)):
        if time.perf_counter() > end_s:
            return
        yield number


def carry_out(attack: Attack, draw: Callable[[int], Iterator[int]]) -> tuple[int, int, list[str]]:
    """The numbers of operations and kills, and what was not identical after the kills."""
    attack.prepare()
    code, num_operations = in_fork(attack.act, attack.folder)
    assert code == 0, f"{attack.name} exits with {code} even without a kill"
    wanted = (attack.wanted or attack.found)()
    problems: list[str] = []
    num_kills = 0
    for kill_at in draw(num_operations):
        attack.prepare()
        # A few operations depend on time: the last ones may not come.
        if in_fork(attack.act, attack.folder, kill_at)[0] != -signal.SIGKILL:
            continue
        num_kills += 1
        code, _ = in_fork(attack.mend, attack.folder)
        found = attack.found() if code == 0 else {}
        if found != wanted:
            names = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
            problems.append(
                f"before operation {kill_at}: then {code}; other {', '.join(names[:4])}"
            )
    return num_operations, num_kills, problems


def in_fork(act: Callable[[], None], folder: Path, kill_at: int = 0) -> tuple[int, int]:
    """Runs this in a process of its own, killed before an operation in the folder.

    Returns its exit code, and the number of such operations until its end.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        code = 99
        try:
            with open(os.devnull, "r+b") as nothing:
                for stream in (0, 1, 2):
                    os.dup2(nothing.fileno(), stream)
            counted = _kill_before(kill_at, str(folder))
            act()
            os.write(theirs, str(counted()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with open(ours, "rb") as reported:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Where it was killed, a process that it has forked may hold the pipe open.
        return code, int(reported.read()) if code == 0 else 0


def _kill_before(kill_at: int, folder: str) -> Callable[[], int]:
    """Sets the trap; returns a function that gives the number of operations seen."""
    num_seen = 0

    def count(place: Any) -> None:
        nonlocal num_seen
        if str(place).startswith(folder):
            num_seen += 1
            if num_seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not set(str(arguments[1])) & set("wax+"):
            return
        count(arguments[0])

    sync = os.fsync

    def counted_sync(descriptor: int) -> None:
        count(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    os.fsync = counted_sync  # type: ignore[assignment]
    sys.addaudithook(hook)
    return lambda: num_seen


def training(name: str, words: tuple[str, ...], place: Path) -> Attack:
    """A run's worker, restarted in the same folder, as `--resume` does."""
    # Loaded once: each fork has it already.
    import torch

    from flatout.engine.training import loop, trainer, worker  # noqa: F401

    torch.set_num_threads(1)
    begun = f"begun-{Path(words[0]).stem}"
    argv = [sys.executable, "-m", "flatout", "train", *words, *LENGTH, "--name", begun]
    subprocess.run(argv, check=True, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    made, run = (place / "state/runs" / one for one in (begun, "killed"))

    def prepare() -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        header = json.loads((made / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**header, "id": run.name}))
        for file in made.glob("*.py"):
            shutil.copy(file, run)

    def act() -> None:
        if worker.main([str(run)]):
            raise SystemExit(1)

    def mend() -> None:
        # Killed behind its last line it has finished: a resume would be refused.
        if read_run(RunFolder(run)).status != "finished":
            act()

    def found() -> Files:
        # The tensors' file is named by its content.
        last = max(one for one in (run / "checkpoints").iterdir() if one.name.isdigit())
        files = {"weights": digest(run / "weights.safetensors")}
        return files | {f"{last.name}/{one.name}": "" for one in last.glob("*.safetensors")}

    return Attack(name, run, prepare, act, mend, found)


def ingestion(place: Path) -> Attack:
    """Shards of three CSV files, one of them new: the old manifest exists."""
    # Loaded once: each fork has them already. They start threads only when they read a table.
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401

    # Where it is installed, Arrow imports it to make an array of a list.
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")

    from flatout.engine.ingest.ingestion import ingest
    from flatout.schema.ingest_protocol import Ingested, IngestRequest

    source, dest = place / "in", place / "shards"

    def table(number: int) -> None:
        rows = [f"{row},name {row}" for row in range(number * 100, number * 100 + 100)]
        (source / f"{number}.csv").write_text("\n".join(["number,name", *rows, ""]))

    def act() -> None:
        *_, last = ingest(IngestRequest(source=str(source), dest=str(dest), workers=1))
        assert isinstance(last, Ingested)

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        source.mkdir(parents=True)
        table(0)
        table(1)
        # Arrow's threads must not be there when this process forks.
        assert in_fork(act, dest)[0] == 0
        (dest / "train/own.txt").write_text("a person's own")
        (source / "0.csv").unlink()
        table(2)

    def found() -> Files:
        return {name: one for name, one in tree(dest).items() if not name.startswith(".ingest")}

    return Attack("ingest", dest, prepare, act, act, found)


def making(place: Path) -> Attack:
    """`flatout setup`, from an index of small fake wheels; run again after the kill."""
    from support.fake_index import make_index

    from flatout.cli import main as cli

    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    typed = ["setup", "jax", "--cpu", "--yes", "--python", python]
    environments = place / "environments"
    # First of all: an installer must not read the user's settings.
    os.environ |= {
        "FLATOUT_ENVIRONMENTS": str(environments), "FLATOUT_CACHE": str(place / "cache"),
        "UV_CACHE_DIR": str(place.parent / "uv"), "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": make_index(place.parent),
    }  # fmt: skip

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()

    def act() -> None:
        if cli.run(typed):
            raise SystemExit(1)

    def found() -> Files:
        # Its record contains its date; Python writes its caches at any time.
        files = {
            name: one
            for name, one in tree(environments).items()
            if not {"__pycache__", "flatout-environment.json", ".lock"} & set(name.split("/"))
        }
        is_whole = (environments / "jax/flatout-environment.json").is_file()
        return files | {"record": "there" if is_whole else "missing"}

    return Attack("environment", place, prepare, act, act, found)


def applying(place: Path) -> Attack:
    """A plan of changes that is killed, then undone."""
    return _machine("apply", place, is_undone=False)


def undoing(place: Path) -> Attack:
    """The undo of an applied plan of changes; killed and started again."""
    return _machine("undo", place, is_undone=True)


def _machine(name: str, place: Path, *, is_undone: bool) -> Attack:
    from flatout.schema.plan import Block, Edit, Entry, Move, Plan, PlanStep, RunProgram, Write
    from flatout.system.changes import api as changes_api

    home = place / "home"
    actions = (
        Edit(file=str(home / "link"), form="ini", entries=(Entry(place=("a", "b"), value="4"),)),
        Edit(file=str(home / "x.json"), form="json", entries=(Entry(place=("r", "p"), value="x"),)),
        Block(file=str(home / ".rc"), name="n", lines=("export B=2",)),
        Write(file=str(home / "new/deep/tool"), text="#!/bin/sh\n", is_executable=True),
        Move(source=str(home / "old"), target=str(home / "older")),
        RunProgram(argv=("mkdir", str(home / "made")), makes=str(home / "made")),
    )
    plan = Plan(
        goal="g", steps=tuple(PlanStep(text="t", changes="c", action=one) for one in actions)
    )

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        home.mkdir(parents=True)
        os.environ["FLATOUT_STATE"] = str(place / "state")
        (home / "real").write_bytes("\ufeff[a]\r\nb=8 # mine\r\n".encode())
        (home / "link").symlink_to("real")
        (home / "x.json").write_text('{\n  "n": 1.10\n}')
        (home / ".rc").write_bytes(b"export A=1\n\xff latin")
        (home / "old").mkdir()
        (home / "old/x").write_text("x")
        if is_undone:
            apply()

    def apply() -> None:
        for outcome in changes_api.apply(plan):
            assert outcome.how != "failed", outcome

    def undo() -> None:
        from flatout.errors import UsageError

        try:
            for _ in changes_api.undo(changes_api.change_to_undo(None)):
                pass
        except UsageError as error:
            # Killed before it had changed anything, or behind the last thing that was put back.
            if error.rule != "nothing-to-undo":
                raise

    def before() -> Files:
        prepare()
        if is_undone:
            undo()
        return tree(home)

    act = undo if is_undone else apply
    return Attack(name, place, prepare, act, undo, lambda: tree(home), wanted=before)


def tree(folder: Path) -> Files:
    """All files and folders below a folder: digests of contents, targets of links, and modes."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            files[name] = os.readlink(path)
        else:
            what = digest(path) if path.is_file() else "folder"
            files[name] = f"{what} {path.stat().st_mode:o}"
    return files


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
