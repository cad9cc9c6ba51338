"""Settings for Lightning, the Hugging Face Trainer and Accelerate train a model in those tools."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked_ranks import ForkedRanks, run_fresh

from flatout.engine.runtime.allocator import why_not_retained
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import build
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.engine.tuner.code_outline import outline
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Decision, Emit
from flatout.tune.emit.settings import settings

Trained = Callable[..., Any]
CASES = Path(__file__).resolve().parents[1] / "cases" / "emit"
PACKAGES: dict[Emit, tuple[str, ...]] = {
    "lightning": ("lightning",),
    "hf": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
}
DECISION = Decision(
    is_default=True, changes={}, rungs=(), lost=(), refused=(), skipped=(), speedup=None,
    why="nothing was measured", search_s=0.0,
)  # fmt: skip
# Updates of two epochs: the last batch of an epoch is smaller.
NUM_UPDATES = 2 * 23


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[Emit, ForkedRanks]]:
    """For each tool a process that has loaded it; it takes longer than a training does."""
    # What the tools load only when they are used.
    more: dict[Emit, tuple[str, ...]] = {"hf": ("transformers.trainer",)}
    loaded = {emit: ForkedRanks(*names, *more.get(emit, ())) for emit, names in PACKAGES.items()}
    yield loaded
    for one in loaded.values():
        one.close()


@pytest.fixture
def trained(tools: dict[Emit, ForkedRanks], tmp_path: Path) -> Trained:
    """Trains with a tool; see `trained_by`."""

    def train(
        emit: Emit, fixed: dict[str, Any], is_read: bool = False, *, is_fresh: bool = False
    ) -> Any:
        missing = [name for name in PACKAGES[emit] if find_spec(name) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: pip install 'flatout[bench,language]'")
        run = run_fresh if is_fresh else tools[emit].run_alone
        return trained_by(run, emit, tmp_path, fixed, is_read)

    return train


def trained_by(
    run: Callable[..., int], emit: Emit, folder: Path, fixed: dict[str, Any], is_read: bool
) -> Any:
    """What was seen while a tool trained with the settings of a recipe.

    run: see `run_fresh`.
    """
    spec = ExperimentSpec(
        name="pictures", file=str(CASES / "pictures.py"), parameters={"is_read": is_read},
        fixed=fixed,
    )  # fmt: skip
    built = build(load_experiment(spec), spec.seed, "cpu")
    recipe = built.recipe(fixed)
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    tuned = TunedRecipe(
        folder="", recipe=recipe, decision=DECISION, is_from_cache=False, unit="rows"
    )
    text = settings(header, tuned, outline(built, recipe, emit), emit)
    (folder / "settings.py").write_text(text, encoding="utf-8")
    command = [str(CASES / "run_settings.py"), emit, "settings.py", *["--samples"] * is_read]
    log = folder / "printed.txt"
    exit_code = run(command, os.environ, log, limit_s=180.0, folder=folder)
    printed = log.read_text(encoding="utf-8", errors="replace")
    assert exit_code == 0, text + printed
    # Where a progress bar ends without a line break, in the middle of a line.
    _, start, report = printed.rpartition('{"dtypes"')
    assert start, text + printed
    seen, _ = json.JSONDecoder().raw_decode(start + report)
    assert seen["after"] < 0.5 * seen["before"]
    return seen


@pytest.mark.parametrize("emit", PACKAGES)
def test_settings_for_tensors_take_effect(emit: Emit, trained: Trained) -> None:
    retained = {} if why_not_retained() else {"allocator": "retain"}
    seen = trained(emit, {
        "precision": "bf16", "micro_batch_size": 32, "optimizer_implementation": "fused",
        "memory_format": "channels_last", "num_threads": 1, "deterministic": True, **retained,
    })  # fmt: skip
    assert seen["dtypes"] == ["torch.bfloat16"] and seen["strides"] == [True]
    assert max(seen["sizes"]) == 32 and seen["updates"] == NUM_UPDATES
    assert seen["threads"] == 1 and seen["deterministic"]
    assert seen["fused"] and not seen["foreach"]


@pytest.mark.parametrize("emit", PACKAGES)
def test_settings_for_samples_take_effect(emit: Emit, tmp_path: Path, trained: Trained) -> None:
    seen = trained(
        emit,
        {
            "loader_workers": 2, "loader_prefetch": 3, "optimizer_implementation": "foreach",
            "deterministic": False, "checkpoint_every": 20, "attention": "math",
        },
        is_read=True,
    )  # fmt: skip
    assert seen["dtypes"] == ["torch.float32"] and max(seen["sizes"]) == 64
    assert seen["updates"] == NUM_UPDATES and not seen["deterministic"]
    assert seen["foreach"] and not seen["fused"]
    if emit != "accelerate":
        assert any("40" in path.name for path in tmp_path.rglob("*") if "checkpoint" in str(path))


@pytest.mark.skipif(
    why_not_compiled(torch.device("cpu")) is not None, reason="needs a compiler for torch.compile"
)
@pytest.mark.parametrize("emit", PACKAGES)
def test_settings_with_a_compiler_train(emit: Emit, trained: Trained) -> None:
    # Nothing is imported but what the settings import.
    seen = trained(emit, {"compiled": "loss", "num_threads": 1}, is_fresh=True)
    assert seen["updates"] == NUM_UPDATES
