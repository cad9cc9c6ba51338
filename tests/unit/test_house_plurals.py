"""One is singular: counted nouns come from `counted_text`, and what is shown of one says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec

import flatout
from flatout.cli.render import machine_rows, wording
from flatout.schema.machine import Cpu, Machine
from flatout.schema.run_lines import Started
from flatout.schema.units import counted_text

SRC = Path(flatout.__file__).parent
NOUNS = (
    "epochs", "steps", "samples", "images", "recipes", "workers", "threads", "processes",
    "ranks", "files", "records", "shards", "CPUs", "GPUs", "nodes", "packages", "checkpoints",
    "environments", "classes", "columns", "rows", "texts", "weights", "updates", "batches",
    "containers", "builds", "wheels", "errors", "warnings", "days", "lines", "items", "pieces",
    "graphs", "labels",
)  # fmt: skip
_PLURAL = re.compile(rf"\{{[^{{}}]+\}} (?:{'|'.join(NOUNS)})\b")
# Where it is never one, or is a list.
ALLOWED = (
    "CUDA graph of {num_steps} steps", "{recipe.num_threads.value} threads take turns",
    "for each of {num_sharing} ranks", "shared by {facts.num_ranks_here} ranks",
    "any of {size} ranks", "batches differ in shape", "{nodes.count} nodes did not connect",
    "{first.workers:,} workers", "for {self.num_ranks} ranks", "are {self.num_ranks} ranks",
    "{_PREFETCH} batches ahead",
    "more than {MOST_LINES:,} lines", "counts {candidate.counts[-1:]} steps",
    "updates of {sizes} samples", "takes {per_forward * num_parts} samples",
    "x{result.speedup.middle:.2f} samples/s",
)  # fmt: skip
_ONE_OF_MANY = re.compile(r"\b1 [A-Za-z]+s\b")


def texts_in(file: Path) -> list[str]:
    """The f-strings of a file, with what is put in as {name}."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]


def test_counted_text() -> None:
    assert counted_text(1, "epoch") == "1 epoch"
    assert counted_text(0, "epoch") == "0 epochs"
    assert counted_text(1200, "batch", "batches") == "1,200 batches"


def test_no_text_puts_a_plural_behind_a_number_that_may_be_one() -> None:
    found = [
        f"{file.relative_to(SRC)}: {text}"
        for file in SRC.rglob("*.py")
        for text in texts_in(file)
        for part in _PLURAL.findall(text)
        if not any(allowed in text for allowed in ALLOWED)
    ]
    assert found == []


def endings_in(file: Path) -> list[str]:
    """Where a file makes a plural by hand: an `s` or nothing, by a number."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        parts: tuple[ast.expr, ...] = ()
        if isinstance(node, ast.IfExp):
            parts = (node.body, node.orelse)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            parts = (node.left, node.right)
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        if "s" in values or "es" in values:
            found.append(ast.unparse(node))
    return found


def test_no_plural_is_made_by_hand() -> None:
    found = [
        f"{file.relative_to(SRC)}: {one}" for file in SRC.rglob("*.py") for one in endings_in(file)
    ]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    texts = [text for file in SRC.rglob("*.py") for text in texts_in(file)]
    assert [one for one in ALLOWED if not any(one in text for text in texts)] == []


def one_of_everything() -> list[str]:
    """What is shown of runs and machines in which there is one of each thing."""
    machine = Machine(cpu=Cpu(name="a CPU", num_threads=1, num_cores=1), unread={"gpus": "none"})
    started = Started(
        at=0.0, step=0, pid=1, num_steps=1, num_epochs=1, steps_per_epoch=1, num_parameters=1,
        num_samples=1, unit="sample",
    )  # fmt: skip
    by_steps = msgspec.structs.replace(started, num_epochs=None)
    return [
        wording.machine_text(machine), wording.data_text(started), wording.data_text(by_steps),
        wording.checkpoints_text([1]),
        *(row.text for row in machine_rows.machine_rows(machine, other_cpus=1.0)),
    ]  # fmt: skip


def test_one_of_everything_is_shown_as_one() -> None:
    shown = one_of_everything()
    assert "1 sample · 1 weight · 1 epoch of 1 step" in shown
    assert "1 sample · 1 weight · 1 step" in shown
    assert [text for text in shown if _ONE_OF_MANY.search(text)] == []
