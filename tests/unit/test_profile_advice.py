"""Advice from reports made by hand: what is said, how much it brings, what comes first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.step_profiles import MS, line, probe, report

from flatout.bench.table_texts import ratio_text
from flatout.monitor import advice_words
from flatout.monitor.advice import MOST_ADVICE, advice_for
from flatout.monitor.script_advice import script_advice
from flatout.schema.step_profile import (
    MODEL_ALONE,
    OperatorProbe,
    OperatorTime,
    Part,
    StepProfile,
    StepTraits,
)
from flatout.schema.tuning import Interval
from flatout.system.store.error_pages import read_advice


def ids(made: StepProfile) -> list[str]:
    return [one.id for one in advice_for(made)]


def test_advice_is_silent_when_nothing_is_slow() -> None:
    assert advice_for(report()) == ()


@pytest.mark.parametrize(
    "advice",
    ["fp32-without-need", "float64", "slow-layout", "unfused-optimizer", "too-many-threads",
     "padding-waste", "needless-checkpointing", "slow-attention"],
)  # fmt: skip
def test_advice_has_the_gain_of_the_whole_step_when_a_probe_was_faster(advice: str) -> None:
    [found] = advice_for(report(probes=(probe(advice, 0.5, affected_ms=6),)))
    assert found.id == advice
    # 10 ms become 7.
    assert found.speedup.middle == pytest.approx(10 / 7)
    assert found.speedup.low < found.speedup.middle < found.speedup.high


def test_advice_names_the_recipe_field_that_does_it() -> None:
    changes = {"memory_format": "channels_last"}
    [found] = advice_for(report(probes=(probe("slow-layout", 0.7, changes=changes),)))
    assert found.fix == "--use memory_format=channels_last"
    assert found.changes == changes
    assert found.changes_result is None


def test_advice_is_silent_when_a_probe_was_no_faster_or_failed() -> None:
    failed = OperatorProbe(advice="slow-layout", affected_s=9 * MS, problem="no kernel")
    assert advice_for(report(probes=(probe("fp32-without-need", 1.1), failed))) == ()


def test_exact_change_comes_before_one_that_rounds_when_both_gain_alike() -> None:
    probes = (probe("fp32-without-need", 0.6), probe("slow-layout", 0.65))
    assert ids(report(probes=probes)) == ["slow-layout", "fp32-without-need"]


def test_much_larger_gain_comes_first_although_it_rounds() -> None:
    probes = (probe("fp32-without-need", 0.3), probe("slow-layout", 0.9))
    assert ids(report(probes=probes)) == ["fp32-without-need", "slow-layout"]


def test_advice_is_at_most_three_changes() -> None:
    names = ("slow-layout", "float64", "unfused-optimizer", "padding-waste", "slow-attention")
    assert len(advice_for(report(probes=tuple(probe(name, 0.5) for name in names)))) == MOST_ADVICE


def test_small_batch_is_named_with_the_parameter_that_sets_it() -> None:
    traits = StepTraits(batch_size=2, batch_parameter="batch_size", num_cores=2)
    made = report(
        traits=traits, recipe={"micro_batch_size": 2},
        probes=(probe("small-batch", 0.3, batch_size=8),),
    )  # fmt: skip
    [found] = advice_for(made)
    assert found.fix == "-s batch_size=8"
    assert found.changes == {}
    assert found.changes_result is not None
    # 9 ms at 0.3, and a quarter of the optimizer.
    assert found.speedup.middle == pytest.approx(10 / (2.7 + 0.25))


def test_small_micro_batch_is_a_recipe_field() -> None:
    made = report(
        recipe={"micro_batch_size": 4}, probes=(probe("small-batch", 0.3, batch_size=16),)
    )
    [found] = advice_for(made)
    assert (found.id, found.changes) == ("small-micro-batch", {"micro_batch_size": 16})


def test_larger_batch_is_not_advised_when_it_gains_little() -> None:
    made = report(probes=(probe("small-batch", 0.95, batch_size=256),))
    assert advice_for(made) == ()


DATA: dict[Part, float] = {"data": 6 * MS, "matrix": 4 * MS}


def test_starved_loader_keeps_samples_when_that_saves_most() -> None:
    probes = (
        probe("loader-starved", 0.1, 6, changes={"data_path": "cached"}),
        probe("loader-starved", 0.5, 6, changes={"loader_workers": 2}),
    )
    [found] = advice_for(report(DATA, probes=probes))
    assert found.changes == {"data_path": "cached"}
    assert found.speedup.middle == pytest.approx(10 / 4.6)


def test_starved_loader_gets_workers_when_samples_cannot_be_kept() -> None:
    probes = (
        probe("loader-starved", 0.1, 6, changes={"data_path": "cached"}),
        probe("loader-starved", 0.5, 6, changes={"loader_workers": 2}),
    )
    traits = StepTraits(data_kind="map-style", not_cached="samples are random")
    [found] = advice_for(report(DATA, probes=probes, traits=traits))
    assert found.changes == {"loader_workers": 2}


def test_starved_loader_names_lines_when_no_field_helps() -> None:
    slow = line("return decoded(path)", 5, part="data")
    [found] = advice_for(report(DATA, lines=(slow,)))
    assert found.id == "loader-starved"
    assert found.lines == (slow,)
    assert found.changes == {}


def test_values_that_are_read_are_lines_to_change() -> None:
    [found] = advice_for(report(lines=(line("if one.item() < 10:", 4, loop=1),)))
    assert found.id == "synchronization"
    assert found.speedup.middle == pytest.approx(10 / 6)


def test_loop_in_which_values_are_read_is_one_advice() -> None:
    lines = (line("total = total + one", 3, 3, loop=1), line("if one.item() < 10:", 1, 2, loop=1))
    assert ids(report(lines=lines, traits=StepTraits(num_operators=500)))[:1] == ["synchronization"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('print("losses", losses)', "printing"), ("logger.info(loss)", "printing"),
        ("values = losses.tolist()", "synchronization"), ("x = inputs.clone()", "needless-copies"),
        ("x = inputs.to(torch.float64)", "needless-copies"),
    ],
)  # fmt: skip
def test_lines_are_judged_by_their_text(text: str, advice: str) -> None:
    assert ids(report(lines=(line(text, 2),))) == [advice]


def test_loop_of_small_operators_is_named_with_its_part_of_the_backward_pass() -> None:
    lines = (line("losses.append(cross_entropy(row, label))", 2, loop=1),)
    made = report(lines=lines, traits=StepTraits(num_operators=1000, num_cores=2, not_compiled="-"))
    found = next(one for one in advice_for(made) if one.id == "python-loop")
    # Half of the forward pass, so half of the backward pass as well; a seventh of it stays.
    assert found.speedup.middle == pytest.approx(10 / (10 - 0.85 * 4.5))


@pytest.mark.parametrize(("model_ratio", "left_ms"), [(0.75, 8.0), (0.25, 4.6)])
def test_copies_have_their_part_of_what_the_step_is_outside_of_the_model(
    model_ratio: float, left_ms: float
) -> None:
    lines = (
        line("x = inputs.clone()", 2, through="torch/_tensor.py: clone"),
        line("loss = mean(x)", 0.5, 2),
        line("x = model(x)", 3, 3, through="torch/nn/modules/linear.py: forward"),
    )
    # Of 9 ms forward and backward, a quarter (less than the lines take) or three quarters.
    made = report(lines=lines, probes=(probe(MODEL_ALONE, model_ratio),))
    name = "autograd::engine::evaluate_function: CloneBackward0"
    node = OperatorTime(name=name, calls=1, self_s=0.0, total_s=0.1 * MS)
    [found] = advice_for(msgspec.structs.replace(made, operators=(node,)))
    assert found.speedup.middle == pytest.approx(10 / left_ms)
    # Without a node of autograd outside of layers, what is copied has no gradient.
    inside = msgspec.structs.replace(node, layer="layers.0")
    for operators in ((), (inside,)):
        [found] = advice_for(msgspec.structs.replace(made, operators=operators))
        assert found.speedup.middle == pytest.approx(10 / 8)


def test_line_that_puts_together_what_a_loop_computes_belongs_to_the_loop() -> None:
    loop = line("losses.append(cross_entropy(row, label))", 2, 5, loop=4, count=50)
    traits = StepTraits(num_operators=1000, num_cores=2, not_compiled="-")
    together = line("return torch.stack(losses).mean()", 1, 6)
    far, other = (line(together.text, 1, 60), line("return losses", 1, 6))
    for following, seconds_ms in ((together, 9.0), (far, 6.0), (other, 6.0)):
        lines = (loop, following)
        made = report(lines=lines, traits=traits, probes=(probe(MODEL_ALONE, 0.0),))
        found = next(one for one in advice_for(made) if one.id == "python-loop")
        assert found.speedup.middle == pytest.approx(10 / (10 - seconds_ms * 49 / 50))


def test_loop_that_runs_often_leaves_little_when_all_is_computed_at_once() -> None:
    lines = (
        line("losses.append(cross_entropy(row, label))", 3, 2, loop=1, count=50),
        line("for row in rows:", 0.01, 1, loop=1, count=51),
    )
    traits = StepTraits(num_operators=1000, num_cores=2, not_compiled="-")
    made = report(lines=lines, traits=traits, probes=(probe(MODEL_ALONE, 1 / 9),))
    found = next(one for one in advice_for(made) if one.id == "python-loop")
    # All but 1 ms of 9, of which a fiftieth stays.
    assert found.speedup.middle == pytest.approx(10 / (10 - 8 * 49 / 50))
    assert "the loop's body runs 50 times a step" in found.because


def test_loop_in_the_model_has_its_part_of_both_passes_as_of_forward() -> None:
    # The model alone takes as long as all: nothing is outside of it.
    lines = (line("state = cell(row, state)", 2, loop=1, is_in_model=True),)
    traits = StepTraits(num_operators=1000, num_cores=2, not_compiled="-")
    made = report(lines=lines, traits=traits, probes=(probe(MODEL_ALONE, 1.0),))
    found = next(one for one in advice_for(made) if one.id == "python-loop")
    assert found.speedup.middle == pytest.approx(10 / (10 - 0.85 * 4.5))


@pytest.mark.parametrize(
    ("num_operators", "micro_batch_size", "left"),
    [(1000, 64, 1 / 50), (1000, 4, 16 / 50), (112.5, 64, 0.75)],
)
def test_what_stays_of_a_loop_is_each_micro_batch_at_once_and_the_computing(
    num_operators: float, micro_batch_size: int, left: float
) -> None:
    # 9 ms in 112.5 operators are 80 us for each, of which 20 are for calling it.
    lines = (line("losses.append(cross_entropy(row, label))", 4, 2, loop=1, count=50),)
    traits = StepTraits(num_operators=num_operators, num_cores=2, not_compiled="-", batch_size=64)
    made = report(
        lines=lines, traits=traits, recipe={"micro_batch_size": micro_batch_size},
        probes=(probe(MODEL_ALONE, 0.0),),
    )  # fmt: skip
    found = next(one for one in advice_for(made) if one.id == "python-loop")
    assert found.speedup.middle == pytest.approx(10 / (10 - 9 * (1 - left)))


def test_speedup_of_hundreds_is_shown_in_whole_numbers() -> None:
    assert ratio_text(Interval(middle=63.342, low=4.5, high=200)) == "x63.34 [4.50, 200]"


def test_loop_over_layers_is_no_loop_to_remove() -> None:
    through = "torch/nn/modules/linear.py: forward"
    lines = (line("hidden = layer(hidden)", 4, loop=1, through=through),)
    assert advice_for(report(lines=lines, traits=StepTraits(num_operators=1000))) == ()


def test_call_of_the_model_is_no_slow_line() -> None:
    lines = (line("logits = model(inputs)", 4, through="torch/nn/modules/linear.py: forward"),)
    assert advice_for(report(lines=lines)) == ()


def test_lines_on_a_gpu_bring_only_what_it_waits_for() -> None:
    parts: dict[Part, float] = {"matrix": 9 * MS, "sync": 1 * MS}
    made = report(parts, traits=StepTraits(device="cuda"), lines=(line("total += loss.item()", 8),))
    [found] = advice_for(made)
    assert found.speedup.middle == pytest.approx(10 / 9)


def test_recompiling_is_named_with_its_time() -> None:
    [found] = advice_for(report(traits=StepTraits(compile_s=5 * MS, num_recompiles=1.0)))
    assert found.id == "recompiles"
    assert found.speedup.middle == pytest.approx(2.0)
    assert found.changes == {}


def test_guards_of_earlier_compilations_count_as_host_work() -> None:
    traits = StepTraits(compile_s=5 * MS, num_recompiles=1.0)
    [found] = advice_for(report({"matrix": 1 * MS, "host": 9 * MS}, traits=traits))
    assert found.speedup.middle == pytest.approx(10.0)
    assert found.speedup.low == pytest.approx(10 / 5.5)


def test_gpu_that_waits_for_launches_is_recorded() -> None:
    parts: dict[Part, float] = {"matrix": 5 * MS, "launch": 4 * MS, "host": 1 * MS}
    [found] = advice_for(report(parts, traits=StepTraits(device="cuda")))
    assert (found.id, found.changes) == ("launch-bound", {"capture": "step"})


def test_captured_gpu_that_still_waits_needs_a_larger_batch() -> None:
    parts: dict[Part, float] = {"matrix": 5 * MS, "launch": 4 * MS, "host": 1 * MS}
    made = report(parts, traits=StepTraits(device="cuda"), recipe={"capture": "step"})
    [found] = advice_for(made)
    assert found.id == "idle-device"
    assert found.changes_result is not None


def test_pageable_copies_are_pinned() -> None:
    parts: dict[Part, float] = {"matrix": 7 * MS, "copy": 3 * MS}
    traits = StepTraits(device="cuda", pageable_copy_s=3 * MS)
    [found] = advice_for(report(parts, traits=traits, recipe={"data_path": "loader"}))
    assert found.changes == {"loader_pin_memory": True}


def test_small_operators_are_compiled_when_that_is_possible() -> None:
    parts: dict[Part, float] = {"memory": 6 * MS, "host": 3 * MS, "matrix": 1 * MS}
    [found] = advice_for(report(parts, traits=StepTraits(num_operators=900)))
    assert (found.id, found.changes) == ("tiny-operators", {"compiled": "loss"})
    made = report(parts, traits=StepTraits(num_operators=900, not_compiled="no compiler"))
    assert advice_for(made)[0].changes == {}
    assert found.basis.startswith("if compiling saved 70 % of their time, less ")
    assert advice_for(made)[0].basis == "if 70 % of their time were saved"


# Recorded on an AMD EPYC with 2 cores, one thread, torch 2.13.0+cpu (LOG.md, 2026-11-28).
SHORT_STEP: dict[str, Any] = {
    "step_s": (0.286 * MS,),
    "phases_s": {"data": 0.010 * MS, "forward": 0.089 * MS, "backward": 0.130 * MS,
                 "optimizer": 0.053 * MS},
    "recipe": {"micro_batch_size": 8, "compiled": "off"},
}  # fmt: skip
SHORT_PARTS: dict[Part, float] = {
    "data": 0.010 * MS, "matrix": 0.011 * MS, "memory": 0.020 * MS, "optimizer": 0.053 * MS,
    "host": 0.191 * MS,
}  # fmt: skip
LONG_STEP: dict[str, Any] = {
    "step_s": (2.684 * MS,),
    "phases_s": {"data": 0.018 * MS, "forward": 1.036 * MS, "backward": 1.510 * MS,
                 "optimizer": 0.105 * MS},
}  # fmt: skip
LONG_PARTS: dict[Part, float] = {
    "data": 0.018 * MS, "matrix": 0.039 * MS, "memory": 1.764 * MS, "optimizer": 0.105 * MS,
    "host": 0.758 * MS,
}  # fmt: skip


# The second count is as if its operators were smaller still.
@pytest.mark.parametrize("num_operators", [32, 200])
def test_short_step_is_not_compiled_since_calling_compiled_code_takes_longer(
    num_operators: int,
) -> None:
    # `mlp` with batch_size=8: compiled, it was x0.61 [0.49, 0.77].
    traits = StepTraits(batch_size=8, num_cores=2, num_operators=num_operators)
    assert ids(report(SHORT_PARTS, traits=traits, **SHORT_STEP)) == []


def test_long_step_of_small_operators_is_compiled() -> None:
    traits = StepTraits(batch_size=64, num_cores=2, num_operators=775)
    [found] = advice_for(report(LONG_PARTS, traits=traits, **LONG_STEP))
    assert (found.id, found.changes) == ("tiny-operators", {"compiled": "loss"})
    # Compiled, it was x2.21 [1.83, 2.67].
    assert found.speedup.middle == pytest.approx(2.21, rel=0.1)


def test_workers_come_before_a_change_that_rounds_when_both_gain_alike() -> None:
    made = report(
        {"data": 2 * MS, "matrix": 8 * MS},
        settings={"loader workers": "0", "CPUs": "8"},
        probes=(probe("fp32-without-need", 0.7),),
    )
    assert [one.id for one in script_advice(made)] == ["loader-starved", "fp32-without-need"]


def test_every_advice_has_its_row_in_the_documentation() -> None:
    sources = [path.read_text() for path in Path(advice_words.__file__).parent.glob("*advice*.py")]
    known = {*advice_words.WORDS, *re.findall(r'\bid="([a-z0-9-]+)"', "".join(sources))}
    assert "synchronization" in known
    assert known == read_advice().keys()
