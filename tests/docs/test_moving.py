"""The pages on moving over: both files of each are run, their losses compared step by step."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "moving").glob("from-*.md"))
LIMIT_S = 180
# Largest relative difference under the recipe of the page's command; 0 is equal to the bit.
BOUNDS = {
    "from-a-plain-loop": 0.0,
    "from-lightning": 0.0,
    "from-accelerate": 0.0,
    # The Trainer divides each part by the count of tokens, flatout their sum: other roundings.
    "from-the-hugging-face-trainer": 1e-5,
}
# Under flatout's own recipe: AdamW in one kernel adds and multiplies in another order.
OWN_RECIPE_BOUND = 1e-3


def files_of(page: Path) -> dict[str, str]:
    """Name -> text of the files that a page asks to save, in its order."""
    text = page.read_text(encoding="utf-8")
    return {
        match[1]: match[2]
        for match in re.finditer(
            r"[Ss]ave\s+it\s+as\s+`([\w.]+)`[^`]*?```python\n(.*?)^```$", text, re.M | re.S
        )
    }


def command_of(page: Path) -> tuple[str, dict[str, str]]:
    """The experiment's file that the page's command trains, and the recipe fields it fixes."""
    command = re.search(r"^\$ flatout train (.*)$", page.read_text(encoding="utf-8"), re.M)
    assert command
    file, *rest = shlex.split(command[1])
    uses = [text for text in rest if text != "--use"]
    assert len(rest) == 2 * len(uses)
    return file, dict(text.split("=") for text in uses)


def run(folder: Path, *argv: str) -> str:
    """What a script prints, run in that folder with a home of its own and one thread."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=folder, timeout=LIMIT_S, check=False, text=True, encoding="utf-8",
        stdin=subprocess.DEVNULL, capture_output=True,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
            "FLATOUT_STATE": str(folder / "state"), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def reported_losses(printed: str, folder: Path) -> list[float]:
    """The losses that the other tool told: printed, or in the file of Lightning's logger."""
    losses = [float(text) for text in re.findall(r"^loss (\S+)$", printed, re.M)]
    for file in folder.glob("logs/**/metrics.csv"):
        rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
        losses += [float(row["train_loss"]) for row in rows if row["train_loss"]]
    return losses


def largest_difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference of two losses of the same update, as a share of the loss."""
    return max(abs(a - b) / abs(a) for a, b in zip(losses, others, strict=True))


def test_every_page_has_its_bound() -> None:
    assert {page.stem for page in PAGES} == set(BOUNDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_losses_are_those_of_the_other_tool(page: Path, tmp_path: Path) -> None:
    files = files_of(page)
    imported = re.findall(r"^(?:from|import) (\w+)", "\n".join(files.values()), re.M)
    known = {Path(name).stem for name in files}
    missing = [one for one in dict.fromkeys(imported) if one not in known and not find_spec(one)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'flatout[bench,language]' and torch")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = next(iter(files))
    after, use = command_of(page)
    reported = reported_losses(run(tmp_path, before), tmp_path)
    own = {name: value for name, value in use.items() if name == "micro_batch_size"}
    script = str(Path(__file__).with_name("recorded_losses.py"))
    recorded = run(tmp_path, script, str(tmp_path / after), json.dumps([use, own]))
    as_shown, with_own_recipe = json.loads(recorded.splitlines()[-1])

    num_updates = re.search(r"of all (\d+)\s+updates", page.read_text(encoding="utf-8"))
    assert num_updates and len(reported) == int(num_updates[1])
    assert reported[-1] < reported[0]
    assert largest_difference(reported, as_shown) <= BOUNDS[page.stem]
    assert largest_difference(reported, with_own_recipe) <= OWN_RECIPE_BOUND
