"""Programs written from recipes: they can be compiled, and hold what the recipe asks for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from support.recipes import LOADED, OUTLINE, header, outlines, recipe, recipes, tuned

from flatout.schema.code_outline import CodeOutline
from flatout.schema.recipe import Choice, Recipe, recipe_fields
from flatout.tune.emit.code import program
from flatout.tune.emit.code_lines import Filling, filled


def written(chosen: Recipe, outline: CodeOutline = OUTLINE, **spec: Any) -> str:
    return program(header(**spec), tuned(chosen), outline)


def only_in(one: str, other: str) -> set[str]:
    return set(one.splitlines()) - set(other.splitlines())


def test_program_imports_torch_and_nothing_of_flatout_but_its_name() -> None:
    imported = [
        name.name
        for node in ast.walk(ast.parse(written(recipe())))
        if isinstance(node, ast.Import)
        for name in node.names
    ]
    assert set(imported) - sys.stdlib_module_names == {"torch", "flatout"}


def test_program_of_a_built_in_says_that_flatout_describes_it() -> None:
    text = written(recipe(), name="mnist-large", file=None)
    assert 'importlib.import_module("flatout.experiments.mnist_large")' in text
    assert "needs flatout to be installed" in text and "types.ModuleType" not in text


def test_program_says_the_gain_and_the_reasons() -> None:
    choice: Choice[Any] = Choice(value="fused", why="x1.2\nfaster", evidence="$5 \"sure\" '''")
    text = written(msgspec.structs.replace(recipe(), optimizer_implementation=choice))
    assert "x1.50 [1.40, 1.60] of a plain loop's speed" in text
    assert "# optimizer_implementation fused: x1.2 faster ($5 \"sure\" ''')." in text
    ast.parse(text)


def test_program_gives_the_workers_all_cpus_where_the_step_has_some() -> None:
    samples = msgspec.structs.replace(OUTLINE, data_kind="map-style")
    kept = written(recipe(**LOADED, cpu_affinity="performance-cores"), samples)
    assert "keep_on({1, 3})" in kept
    assert "worker_init_fn=functools.partial(use_cpus, ALL_CPUS)" in kept
    assert "use_cpus" not in written(recipe(**LOADED), samples)


def test_program_keeps_threads_nowhere_when_that_makes_no_difference() -> None:
    alike = msgspec.structs.replace(OUTLINE, cpus={})
    assert "keep_on" not in written(recipe(cpu_affinity="one-per-core"), alike)


def test_program_hands_over_the_parameters() -> None:
    parameters = {"rate": float("inf"), "name": 'a"b\\', "width": 64, "is_deep": True, "x": None}
    text = written(recipe(), parameters=parameters, seed=7, epochs=9)
    call = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "described.experiment"
    )
    given = {word.arg: eval(ast.unparse(word.value)) for word in call.keywords}
    assert given == parameters
    assert "seed: int = 7" in text and "range(9)" in text


# A changed value of each field of the recipe, and what it brings into the program.
CHANGED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "device": ({}, "cuda:1", 'torch.device("cuda:1")'),
    "precision": ({}, "bf16", "dtype=torch.bfloat16"),
    "attention": ({}, "math", "with sdpa_kernel(SDPBackend.MATH):"),
    "data_path": ({"device": "cuda:0"}, "resident", "each(data, torch.Tensor.to, DEVICE)"),
    "loader_workers": (LOADED, 3, "num_workers=3"),
    "loader_prefetch": (LOADED, 5, "prefetch_factor=5"),
    "loader_pin_memory": (LOADED | {"device": "cuda:0"}, True, "pin_memory=True"),
    "loader_persistent": (LOADED, True, "persistent_workers=True"),
    "optimizer_implementation": ({}, "fused", "foreach=False, fused=True"),
    "memory_format": ({}, "channels_last", "model.to(memory_format=torch.channels_last)"),
    "micro_batch_size": ({}, 2, "spans(first, last, 2)"),
    "clip_norm": ({}, 0.5, "clip_grad_norm_(parameters, 0.5)"),
    "num_threads": ({}, 4, "torch.set_num_threads(4)"),
    "cpu_affinity": ({}, "one-per-core", "keep_on({*range(0, 9, 2), 9})"),
    "allocator": ({}, "retain", "libc.mallopt(-4, 0)"),
    "compiled": ({}, "loss", "loss_of = compiled(experiment.loss)"),
    "compile_mode": ({"compiled": "loss"}, "dynamic", "dynamic=True"),
    "deterministic": ({"deterministic": False}, True, "use_deterministic_algorithms(True)"),
    "benchmark": ({"device": "cuda:0", "deterministic": False}, True, "cudnn.benchmark = True"),
    "nonfinite_loss": ({}, "skip", "if is_finite(loss, parameters):"),
    "activation_checkpointing": ({}, True, 'for name in ["blocks.0", "blocks.1"]:'),
    "capture": ({"device": "cuda:0"}, "step", "captured = CapturedSteps("),
    "steps_per_launch": ({"device": "cuda:0", "capture": "step"}, 8, "torch.zeros(8, len("),
}


def test_every_field_of_a_recipe_has_its_lines_in_a_program() -> None:
    # A plain program keeps no checkpoints, ends where memory runs out, and is one process.
    none = {"checkpoint_every", "out_of_memory", "sharding", "batch_norm", "exchange"}
    assert set(CHANGED) | none == set(recipe_fields())


def test_a_program_multiplies_in_8_bits_where_the_recipe_does() -> None:
    after = written(recipe(precision="float8"))
    assert "use_float8(model)" in after and "dtype=torch.bfloat16" in after
    assert "use_float8" not in written(recipe(precision="bf16"))


def test_a_program_computes_a_share_of_the_blocks_again() -> None:
    assert 'for name in ["blocks.0"]:' in written(recipe(activation_checkpointing=0.5))


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_field_changes_the_program(name: str) -> None:
    others, value, line = CHANGED[name]
    kind = "map-style" if "loader_workers" in others else "tensors"
    outline = msgspec.structs.replace(OUTLINE, data_kind=kind)
    before = written(recipe(**others), outline)
    after = written(recipe(**(others | {name: value})), outline)
    assert line not in before and line in after
    assert only_in(after, before)


@given(recipes(), outlines())
def test_every_program_compiles_and_leaves_no_mark(chosen: Recipe, outline: CodeOutline) -> None:
    text = written(chosen, outline)
    compile(text, "program.py", "exec")
    assert not [line for line in text.splitlines() if "#?" in line or "#|" in line or "$" in line]
    assert max(len(line) for line in text.splitlines()) <= 100


def some_programs() -> list[str]:
    """A few programs that together make use of nearly all there is."""
    full = CodeOutline(
        data_kind="tensors", batch_size=8, num_gathered=4096, num_gathered_validation=4096,
        validation_kind="tensors", has_metrics=True, has_ema=True, is_counted=True,
        scheduling="step", has_early_stop=True, validate_every=50,
        blocks=tuple(f"encoder.layers.{number}" for number in range(12)),
        self_checkpointing=("encoder.words",),
    )  # fmt: skip
    samples = CodeOutline(
        data_kind="map-style", batch_size=8, validation_kind="iterable", scheduling="plateau",
        has_collate=True, validate_every=50, cpus={"performance-cores": (0, 2, 4, 6)},
    )  # fmt: skip
    stream = CodeOutline(
        data_kind="iterable", batch_size=8, is_by_steps=True, validation_kind="map-style"
    )
    return [
        written(recipe()),
        written(
            recipe(micro_batch_size=3, clip_norm=1.0, nonfinite_loss="skip", attention="math"), full
        ),
        written(recipe(activation_checkpointing=True), full),
        written(recipe(activation_checkpointing=True, attention="math"), full),
        written(recipe(device="cuda:0", data_path="resident", precision="fp16"), full),
        written(
            recipe(
                **LOADED,
                memory_format="channels_last",
                num_threads=8,
                allocator="retain",
                cpu_affinity="performance-cores",
            ),
            samples,
        ),
        written(recipe(data_path="loader", precision="bf16", micro_batch_size=3), samples),
        written(recipe(data_path="loader", device="cuda:0", loader_pin_memory=True), stream),
        written(recipe(**LOADED, micro_batch_size=3), stream),
        written(
            recipe(device="cuda:0", data_path="resident", capture="step", precision="bf16"), full
        ),
        written(
            recipe(
                **LOADED,
                device="cuda:0",
                capture="step",
                micro_batch_size=3,
                compiled="loss",
                steps_per_launch=8,
            ),
            samples,
        ),
    ]


def test_programs_pass_the_checks_of_the_house(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="needs ruff: programs are checked with it")
    for number, text in enumerate(some_programs()):
        (tmp_path / f"program_{number}.py").write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    rules = "--select=E,F,W,I,UP,B,C4,PIE,RUF100,SIM,D103"
    options = ["--isolated", "--line-length=100", "--target-version=py311"]
    for command in (["check", rules, "--ignore=SIM105,SIM108,SIM117"], ["format", "--diff"]):
        done = subprocess.run(
            [*ruff, *command, *options, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


FILLING = Filling(
    flags={"on": True, "off": False}, values={"name": "x"}, reasons={"why": "a reason"},
    texts={"inner": "with b:  #| off\n    c\n"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a  #? on\nb  #? off\nc  #? on !off\nd  #? on off", ["a", "c"]),
        ("with a:  #| on\n    b\nc", ["with a:", "    b", "c"]),
        ("with a:  #| off\n    b\n\n    if c:\n        d\ne", ["b", "", "if c:", "    d", "e"]),
        ("with a:  #| off\nwith b:  #| on\n    c", ["with b:", "    c"]),
        ("if a:\n    #@ inner\n    d", ["if a:", "    c", "    d"]),
        ("    #= why\n    #= why  #? off\n    $name", ["    # a reason", "    x"]),
    ],
)
def test_filled(text: str, lines: list[str]) -> None:
    assert filled(text, FILLING).splitlines() == lines
