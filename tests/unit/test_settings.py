"""Settings for other tools: Python that can be pasted, and every field emitted or named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from support.recipes import LOADED, OUTLINE, header, outlines, recipe, recipes, tuned

from flatout.schema.code_outline import CodeOutline
from flatout.schema.recipe import Choice, Recipe, recipe_fields
from flatout.schema.tuning import Emit
from flatout.tune.emit.settings import settings

CASES = Path(__file__).resolve().parents[1] / "cases" / "emit"
TOOLS: tuple[Emit, ...] = ("lightning", "hf", "accelerate")
GPU = {"device": "cuda:1", "deterministic": False}
SAMPLES = msgspec.structs.replace(OUTLINE, data_kind="map-style")
OWN = msgspec.structs.replace(SAMPLES, blocks=(), self_checkpointing=("",))
# A whole text of each: fields of the recipe and outline.
GOLDEN: dict[str, tuple[dict[str, Any], CodeOutline]] = {
    "tensors": (
        {"micro_batch_size": 4, "clip_norm": 0.5, "allocator": "retain",
         "optimizer_implementation": "fused", "num_threads": 2, "attention": "math"},
        OUTLINE,
    ),
    "samples": (
        {**LOADED, **GPU, "precision": "bf16", "loader_pin_memory": True, "compiled": "both",
         "optimizer_implementation": "fused", "memory_format": "channels_last",
         "benchmark": True, "checkpoint_every": 500, "activation_checkpointing": True,
         "loader_persistent": True},
        SAMPLES,
    ),
    "graphs": (
        {**GPU, "data_path": "resident", "capture": "step", "steps_per_launch": 8,
         "precision": "float8", "activation_checkpointing": 0.5, "cpu_affinity": "one-per-core",
         "micro_batch_size": 3},
        msgspec.structs.replace(OUTLINE, is_counted=True, is_by_steps=True),
    ),
}  # fmt: skip


def written(emit: Emit, chosen: Recipe, outline: CodeOutline = OUTLINE) -> str:
    return settings(header(), tuned(chosen), outline, emit)


def lists_of(text: str) -> tuple[set[str], set[str], set[str]]:
    """Fields that are set, that the tool cannot express, and for which nothing is set."""
    before, after = text.split(" cannot express:\n")
    missing, _, nothing = after.partition("# Nothing to set: ")
    nothing = re.sub(r"\n# ", " ", nothing).strip().rstrip(".")
    return (
        set(re.findall(r"^ *# (\w+) \S+: ", before, re.M)) & set(recipe_fields()),
        set(re.findall(r"^# - (\w+) ", missing, re.M)),
        {one.split()[0] for one in nothing.split(", ")} if nothing else set(),
    )


@pytest.mark.parametrize("emit", TOOLS)
@given(chosen=recipes(), outline=outlines())
def test_every_field_is_set_or_named(emit: Emit, chosen: Recipe, outline: CodeOutline) -> None:
    text = written(emit, chosen, outline)
    compile(text, "settings.py", "exec")
    assert not re.search(r"#[?|=@]|\$", text)
    assert max(len(line) for line in text.splitlines()) <= 100
    is_set, is_missing, nothing = lists_of(text)
    assert is_set | is_missing | nothing == set(recipe_fields())
    assert not nothing & (is_set | is_missing)


# A value of each field that is not torch's or the tool's own, where it means something; and the
# text that then sets it, by tool. `-`: what cannot be expressed.
CHANGED: dict[str, tuple[dict[str, Any], Any, dict[Emit, str]]] = {
    "device": ({}, "cuda:1", {
        "lightning": "devices=[1]", "hf": 'os.environ["CUDA_VISIBLE_DEVICES"] = "1"',
        "accelerate": 'os.environ["CUDA_VISIBLE_DEVICES"] = "1"'}),
    "precision": ({}, "bf16", {
        "lightning": 'precision="bf16-mixed"', "hf": "bf16=True",
        "accelerate": 'mixed_precision="bf16"'}),
    "data_path": ({"device": "cuda"}, "resident", dict.fromkeys(
        TOOLS, "dataset = Rows(each(tensors, torch.Tensor.to, DEVICE))")),
    "loader_workers": (LOADED, 3, {
        "lightning": "num_workers=3", "hf": "dataloader_num_workers=3",
        "accelerate": "num_workers=3"}),
    "loader_prefetch": (LOADED, 5, {
        "lightning": "prefetch_factor=5", "hf": "dataloader_prefetch_factor=5",
        "accelerate": "prefetch_factor=5"}),
    "loader_pin_memory": (LOADED | {"device": "cuda"}, True, {
        "lightning": "pin_memory=True", "hf": "dataloader_pin_memory=True",
        "accelerate": "DataLoaderConfiguration(non_blocking=True)"}),
    "loader_persistent": (LOADED, True, {
        "lightning": "persistent_workers=True", "hf": "dataloader_persistent_workers=True",
        "accelerate": "persistent_workers=True"}),
    "optimizer_implementation": (LOADED, "fused", dict.fromkeys(
        TOOLS, "group.update(foreach=False, fused=True)")),
    "memory_format": ({}, "channels_last", {
        "lightning": "module.to(memory_format=torch.channels_last)",
        "hf": "model.to(memory_format=torch.channels_last)",
        "accelerate": "model.to(memory_format=torch.channels_last)"}),
    "attention": ({}, "math", dict.fromkeys(TOOLS, "with sdpa_kernel(SDPBackend.MATH):")),
    "micro_batch_size": ({}, 2, {
        "lightning": "accumulate_grad_batches=4", "hf": "gradient_accumulation_steps=4",
        "accelerate": "gradient_accumulation_steps=4"}),
    "activation_checkpointing": ({}, 0.5, dict.fromkeys(TOOLS, 'for name in ["blocks.0"]:')),
    "capture": ({"device": "cuda"}, "step", dict.fromkeys(TOOLS, "-")),
    "steps_per_launch": ({"device": "cuda", "capture": "step"}, 8, dict.fromkeys(TOOLS, "-")),
    "compiled": ({}, "loss", {
        "lightning": 'model.compile(mode="default", dynamic=False)',
        "hf": "torch_compile=True", "accelerate": "dynamo_plugin=TorchDynamoPlugin("}),
    "compile_mode": ({"compiled": "loss"}, "max-autotune-no-cudagraphs", {
        "lightning": 'mode="max-autotune-no-cudagraphs"',
        "hf": 'torch_compile_mode="max-autotune-no-cudagraphs"',
        "accelerate": 'mode="max-autotune-no-cudagraphs"'}),
    "sharding": ({}, "full", dict.fromkeys(TOOLS, "-")),
    "batch_norm": ({}, "synchronized", dict.fromkeys(TOOLS, "-")),
    "exchange": ({}, "plain", dict.fromkeys(TOOLS, "-")),
    "clip_norm": ({}, 0.5, {
        "lightning": "gradient_clip_val=0.5", "hf": "max_grad_norm=0.5",
        "accelerate": "accelerator.clip_grad_norm_(model.parameters(), 0.5)"}),
    "num_threads": ({}, 4, dict.fromkeys(TOOLS, "torch.set_num_threads(4)")),
    "cpu_affinity": ({}, "performance-cores", dict.fromkeys(TOOLS, "keep_on({1, 3})")),
    "allocator": ({}, "retain", dict.fromkeys(TOOLS, "libc.mallopt(-4, 0)")),
    "deterministic": ({"deterministic": False}, True, {
        "lightning": "deterministic=True", "hf": "torch.use_deterministic_algorithms(True)",
        "accelerate": "torch.use_deterministic_algorithms(True)"}),
    "benchmark": (GPU, True, {
        "lightning": "benchmark=True", "hf": "torch.backends.cudnn.benchmark = True",
        "accelerate": "torch.backends.cudnn.benchmark = True"}),
    "nonfinite_loss": ({}, "skip", dict.fromkeys(TOOLS, "-")),
    "out_of_memory": ({}, "shrink", dict.fromkeys(TOOLS, "-")),
    "checkpoint_every": ({}, 500, {
        "lightning": "ModelCheckpoint(every_n_train_steps=500)", "hf": "save_steps=500",
        "accelerate": "-"}),
}  # fmt: skip


def test_every_field_is_changed_here() -> None:
    assert set(CHANGED) == set(recipe_fields())


@pytest.mark.parametrize("emit", TOOLS)
@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_field_is_set_or_named(name: str, emit: Emit) -> None:
    others, value, lines = CHANGED[name]
    outline = SAMPLES if "loader_workers" in others else OUTLINE
    before = written(emit, recipe(**others), outline)
    after = written(emit, recipe(**(others | {name: value})), outline)
    is_set, is_missing, nothing = lists_of(after)
    assert name not in nothing
    if lines[emit] == "-":
        assert name in is_missing and f"# - {name} {value}: " in after
    else:
        assert name in is_set and lines[emit] in after and lines[emit] not in before


@pytest.mark.parametrize("emit", TOOLS)
@pytest.mark.parametrize("case", GOLDEN)
def test_settings_are_those_of_the_case(case: str, emit: Emit) -> None:
    fields, outline = GOLDEN[case]
    path = CASES / f"{emit}-{case}.txt"
    assert written(emit, recipe(**fields), outline) == path.read_text(encoding="utf-8")


def test_settings_give_the_reason_and_the_gain() -> None:
    choice: Choice[Any] = Choice(value=0.5, why="x1.2\nfaster", evidence="$5 \"sure\" '''")
    text = written("hf", msgspec.structs.replace(recipe(), clip_norm=choice))
    assert "    # clip_norm 0.5: x1.2 faster ($5 \"sure\" ''')." in text
    assert "x1.50 [1.40, 1.60] of a plain loop's speed" in text


def test_settings_when_micro_batches_do_not_divide_the_batch() -> None:
    text = written("lightning", recipe(micro_batch_size=3))
    assert "batch_size=3" in text and "accumulate_grad_batches=3" in text
    assert "an update takes 9 samples, not 8" in text.replace("\n#   ", " ")


@pytest.mark.parametrize("prefix", ["activation_checkpointing", "gradient_checkpointing"])
def test_settings_use_the_checkpointing_of_the_model(prefix: str) -> None:
    own = msgspec.structs.replace(OWN, checkpointing_prefix=prefix)
    chosen = recipe(**LOADED, activation_checkpointing=True)
    assert f"    {prefix}=True," in written("hf", chosen, own)
    assert f"own.{prefix}_enable(" in written("lightning", chosen, own)


def test_settings_of_the_trainer_count_updates_where_data_has_no_length() -> None:
    stream = msgspec.structs.replace(OUTLINE, data_kind="iterable")
    assert "max_steps=steps" in written("hf", recipe(), stream)
    assert "max_epochs=epochs" in written("lightning", recipe(), stream)


def test_settings_pass_the_checks_of_the_house(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="needs ruff: settings are checked with it")
    for emit in get_args(Emit)[1:]:
        for case, (fields, outline) in GOLDEN.items():
            text = written(emit, recipe(**fields), outline)
            (tmp_path / f"{emit}_{case}.py").write_text(text, encoding="utf-8")
    # Names that the text expects are not defined in it.
    rules = "--select=E,F,W,I,UP,B,C4,PIE,SIM"
    ignored = "--ignore=F821,E402,SIM105,SIM117"
    options = ["--isolated", "--line-length=100", "--target-version=py311"]
    for command in (["check", rules, ignored], ["format", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
