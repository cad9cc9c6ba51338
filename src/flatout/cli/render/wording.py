"""Runs, machines and numbers in words, for the code that prints them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from flatout.runs.model.listed import RunRemoval
from flatout.schema.environment import SmokeTestResult
from flatout.schema.experiment_spec import ExperimentSpec, UsedConfig
from flatout.schema.machine import Machine
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Recipe
from flatout.schema.run import Checkpointing, Run, Utilization
from flatout.schema.run_lines import FileChanged, Started, Tuned
from flatout.schema.shell_quoting import home_text as home_text
from flatout.schema.suggested_command import (
    is_of_notebook,
    resume_run,
    show_command,
    stop_command,
    train_command,
    typed_value,
)
from flatout.schema.tracking import TrackerPosition
from flatout.schema.tuning import Decision, Interval
from flatout.schema.units import (
    bytes_text,
    count_text,
    counted_text,
    is_ratio,
    noun_text,
    percent_text,
    quantity_text,
    rate_text,
    seconds_text,
)

DOT = " · "

# What `compiled` says, in words.
COMPILED_PARTS = {
    "loss": "forward and loss", "optimizer": "optimizer", "both": "forward, loss and optimizer",
}  # fmt: skip


def time_text(at: float) -> str:
    """A local time of day: "21 Nov 04:17", with the year if it is not this one."""
    moment = datetime.fromtimestamp(at)
    is_this_year = moment.year == datetime.now().year
    return moment.strftime("%d %b %H:%M" if is_this_year else "%d %b %Y")


def near_text(path: str) -> str:
    """A path as short as it can be typed here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return home_text(path)


def interval_text(interval: Interval) -> str:
    """A speed-up with its 95 % interval: "x1.82 [1.79, 1.85]"."""
    return f"x{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def decision_text(line: Tuned) -> str:
    """The result of a search before a training, on one line."""
    decision = line.decision
    price = seconds_text(decision.search_s)
    if not decision.has_measured:
        return f"not searched; training with the defaults{DOT}{price}"
    if decision.speedup is None:
        return f"defaults kept{DOT}searched {price}"
    origin = "found before, probed in" if line.is_from_cache else "searched"
    return f"{interval_text(decision.speedup)} over the defaults{DOT}{origin} {price}"


def stay_lines(decision: Decision) -> list[tuple[str, str]]:
    """The reasons for keeping the defaults; nothing if something faster was found."""
    if decision.speedup is not None:
        return []
    again = "" if decision.is_decided else "; not saved, so the next search starts over"
    return [("because", f"{decision.why}{again}")]


def load_lines(decision: Decision) -> list[tuple[str, str]]:
    """A note on a recipe that was found while other programs were running."""
    if decision.load is None or not decision.is_busy or decision.speedup is None:
        return []
    text = f"other programs used {decision.load.text}"
    return [("busy", f"{text}; measured again when the machine is idle")]


def unused_lines(decision: Decision) -> list[tuple[str, str]]:
    """The candidates that could not be measured, each on a line with its reason."""
    reasons = [
        f"{result.trial.candidate.name}: {result.problem.problem}"
        for result in decision.lost
        if result.problem is not None
    ]
    return [("not used", text) for text in dict.fromkeys(reasons)]


def metric_text(name: str, value: float | None) -> str:
    """A metric as people read it: "accuracy" in percent, others with four figures."""
    if value is None:
        return "not finite"
    return percent_text(value) if is_ratio(name) and 0 <= value <= 1 else f"{value:.4g}"


def headline(metrics: Mapping[str, float | None]) -> str:
    """The metric that says most: the first that is not a loss."""
    return metrics_text(metrics).partition(DOT)[0]


def listed_metric(metrics: Mapping[str, float | None]) -> str:
    """The metric that says most, in a column."""
    return headline(metrics).removeprefix("validation ") if metrics else ""


def removal_question(removals: Sequence[RunRemoval]) -> str:
    """The question before runs are deleted."""
    if len(removals) == 1:
        (removal,) = removals
        return f"Delete {'the link ' if removal.target else ''}{removal.folder} for good?"
    size = bytes_text(sum(removal.num_bytes for removal in removals))
    return f"Delete these {len(removals)} runs ({size}) for good, with their checkpoints?"


def removed_text(removal: RunRemoval) -> str:
    """The deleted parts of a run."""
    if removal.target:
        return f"the link {removal.folder}; the run itself is kept in {removal.target}"
    return f"{removal.id} ({bytes_text(removal.num_bytes)})"


def init_text(path: str) -> str:
    """Weights that a run began with: the run that they are of, else their file."""
    file = Path(path)
    is_run = file.name == "weights.safetensors" and file.parent.parent.name == "runs"
    return file.parent.name if is_run else near_text(path)


def metrics_text(metrics: Mapping[str, float | None]) -> str:
    """The metrics of a validation on one line, losses last."""
    names = sorted(metrics, key=lambda name: name.endswith("loss"))
    return DOT.join(f"{validated_name(name)} {metric_text(name, metrics[name])}" for name in names)


def validated_name(name: str) -> str:
    """The name of a validation metric, distinct from the training loss."""
    return "validation loss" if name == "loss" else name


def progress_text(run: Run) -> str:
    """Progress of a run: "epoch 3/14 · step 690/3,220"."""
    started = run.started
    if started is None:
        return "starting" if run.status == "running" else "not started"
    steps = f"/{count_text(started.num_steps)}" if started.num_steps else ""
    step = f"step {count_text(run.step)}{steps}"
    if not started.steps_per_epoch or not started.num_epochs:
        return step
    # The last step of an epoch still belongs to it.
    epoch = max(run.step - 1, 0) // started.steps_per_epoch + 1
    return f"epoch {epoch}/{started.num_epochs}{DOT}{step}"


def epochs_text(run: Run) -> str:
    """Progress of a run, for a column of epochs: "3/14", "2.4/14"."""
    started = run.started
    if started is None or not started.steps_per_epoch or not started.num_epochs:
        return progress_text(run)
    done = f"{run.step / started.steps_per_epoch:.1f}".removesuffix(".0")
    return f"{done}/{started.num_epochs}"


def experiment_text(spec: ExperimentSpec) -> str:
    """An experiment with what the user set."""
    parts = [near_text(spec.file) if spec.file else spec.name]
    parts += [f"{name}={value}" for name, value in spec.parameters.items()]
    parts.append(f"seed {spec.seed}")
    if spec.init:
        parts.append(f"from {init_text(spec.init)}")
    return DOT.join(parts)


def data_text(started: Started) -> str:
    """The size of the training data and the length of the training."""
    parts = [f"{counted_text(started.num_parameters, 'weight')}"]
    if started.num_samples is not None:
        parts.insert(0, f"{count_text(started.num_samples)} {started.unit}")
    if started.num_epochs:
        steps = started.steps_per_epoch
        length = f" of {counted_text(steps, 'step')}" if steps else ""
        parts.append(f"{counted_text(started.num_epochs, 'epoch')}{length}")
    elif started.num_steps:
        parts.append(counted_text(started.num_steps, "step"))
    return DOT.join(parts)


def machine_text(machine: Machine) -> str:
    """The facts of a machine that matter most for training."""
    parts = [
        f"{gpu.name or 'GPU'} {bytes_text(gpu.memory_bytes) if gpu.memory_bytes else ''}".strip()
        for gpu in machine.gpus
    ]
    if machine.driver:
        parts.append(f"driver {machine.driver}")
    if not machine.gpus:
        cores = counted_text(machine.cpu.num_threads or 1, "thread")
        parts.append(f"{machine.cpu.name or 'CPU'}{DOT}{cores}")
        memory = machine.memory.limit_bytes or machine.memory.total_bytes
        if memory:
            parts.append(bytes_text(memory))
    parts.append(
        f"WSL{machine.host.wsl}" if machine.host.wsl else _OS.get(machine.host.os or "", "?")
    )
    torch = machine.framework("torch")
    if torch:
        # The build is often part of the version already: 2.13.0+cpu.
        build = f" {torch.build}" if torch.build and torch.build not in torch.version else ""
        parts.append(f"torch {torch.version}{build}")
    return DOT.join(parts)


_OS = {"linux": "Linux", "windows": "Windows", "macos": "macOS"}


def recipe_text(recipe: Recipe) -> str:
    """A recipe in a line: what its values alone say, then what the user fixed."""
    device = recipe.device.value
    threads = recipe.num_threads.value
    parts = [f"{device} with {counted_text(threads, 'thread')}" if device == "cpu" else device]
    parts.append(recipe.precision.value)
    paths = {
        "sliced": "data sliced in memory",
        "resident": f"data held on {device}",
        "cached": "samples cached in memory",
    }
    num_workers = recipe.loader_workers.value
    workers = f"DataLoader with {counted_text(num_workers, 'worker')}"
    parts.append(paths.get(recipe.data_path.value, workers))
    if recipe.optimizer_implementation.value != "own":
        parts.append(f"{recipe.optimizer_implementation.value} optimizer")
    if recipe.memory_format.value != "contiguous":
        parts.append(recipe.memory_format.value)
    if recipe.micro_batch_size.origin == "measured":
        parts.append(f"micro-batches of {recipe.micro_batch_size.value}")
    if recipe.capture.value == "step":
        steps = recipe.steps_per_launch.value
        which = "step" if steps == 1 else counted_text(steps, "step")
        parts.append(f"{which} in one CUDA graph")
    share = float(recipe.activation_checkpointing.value)
    if share:
        of = "" if share == 1 else f" in {percent_text(share, 0)} of the blocks"
        parts.append(f"activation checkpointing{of}")
    if recipe.compiled.value != "off":
        parts.append(f"compiled {COMPILED_PARTS[recipe.compiled.value]}")
    if recipe.sharding.value == "full":
        parts.append("FSDP")
    if recipe.batch_norm.value == "synchronized":
        parts.append("BatchNorm over all ranks")
    if recipe.exchange.value == "plain":
        parts.append("plain gradient exchange")
    if recipe.cpu_affinity.value != "all":
        parts.append(f"on {recipe.cpu_affinity.value.replace('-', ' ')}")
    if recipe.allocator.value == "retain":
        parts.append("freed memory retained")
    if recipe.clip_norm.value is not None:
        parts.append(f"gradients clipped at {recipe.clip_norm.value:g}")
    if recipe.deterministic.value:
        parts.append("deterministic")
    return DOT.join(parts)


def checkpoints_text(steps: Sequence[int]) -> str:
    """The checkpoints of a run."""
    if not steps:
        return "none yet"
    return f"kept: {noun_text(len(steps), 'step')} {', '.join(map(count_text, steps))}"


def adaptation_line(adaptation: OomAdaptation) -> tuple[str, str]:
    """A change that a training made on the way, with its subject."""
    about = {"uncompiled": "compiling", "uncached": "data"}
    if adaptation.kind == "uncaptured" and adaptation.part is None:
        return "capture", adaptation_text(adaptation)
    return about.get(adaptation.kind, "memory"), adaptation_text(adaptation)


def file_change_line(change: FileChanged) -> tuple[str, str]:
    """A note on a run that continued with a changed file, with the path of the previous one."""
    lines = change.diff.splitlines()[2:]
    parts = [
        f"the experiment's file, at step {count_text(change.step)}",
        f"{counted_text(sum(line.startswith('+') for line in lines), 'line')} added",
        f"{sum(line.startswith('-') for line in lines)} removed",
        *([f"before: {change.kept}"] if change.kept else []),
    ]
    return "changed", DOT.join(parts)


def adaptation_text(adaptation: OomAdaptation) -> str:
    """A change that a training made because memory ran out or compiling failed, in a sentence."""
    parts = {
        "data": "while data was read for", "optimizer": "in the optimizer's part of",
        "capture": "while a graph was recorded for", "validation": "in the validation after",
        "checkpoint": "in the checkpoint after", "other": "after",
    }  # fmt: skip
    # What comes after an update is shown with the update before the first one it applies to.
    is_after = adaptation.part in ("validation", "checkpoint", "other")
    step = f"step {count_text(adaptation.step - is_after)}"
    if adaptation.kind == "uncompiled":
        back = "" if adaptation.is_in_place else ", from the last checkpoint"
        return f"failed at {step} ({adaptation.because}); from here on nothing is compiled{back}"
    if adaptation.kind == "uncached":
        return (
            f"from {step} on, a DataLoader reads the samples; they cannot be cached: "
            f"{adaptation.because}"
        )
    if adaptation.kind == "uncaptured" and adaptation.part is None:
        return (
            f"a CUDA graph could not be recorded for {step} ({adaptation.because}); "
            "eager from here on"
        )
    if adaptation.kind == "larger":
        return (
            f"trying micro-batches of {adaptation.after} instead of {adaptation.before} "
            f"from {step} on"
        )
    if adaptation.part == "process":
        event = f"the kernel killed the process because memory ran out; from {step} on"
    elif adaptation.part == "pace":
        event = f"the driver moved memory out of the GPU before {step}; from here on"
    else:
        phase = parts.get(adaptation.part or "", f"in the {adaptation.part} pass of")
        event = f"ran out {phase} {step}; from here on"
    change = f"micro-batches of {adaptation.after} instead of {adaptation.before}"
    if adaptation.kind == "recomputed":
        change = "activations are recomputed"
    if adaptation.kind == "uncaptured":
        change = "the step runs without a CUDA graph"
    back = (
        ""
        if adaptation.is_in_place or adaptation.part == "process"
        else ", from the last checkpoint"
    )
    return f"{event} {change}{back}"


def cost_text(cost: Checkpointing, *, is_short: bool = False) -> str:
    """The cost of checkpoints: how often, how long training stalled, how much time was lost."""
    stall = f"{seconds_text(cost.stall_s)} pause each"
    parts = [f"{count_text(cost.num_written)} written", stall]
    if not is_short:
        slowdown = f"{seconds_text(cost.slowdown_s)} of" if cost.slowdown_s > 0 else "no"
        parts.append(f"{slowdown} slowdown")
        parts.append(f"{seconds_text(cost.write_s)} to write {bytes_text(cost.size_bytes)}")
    if cost.share is not None:
        parts.append(f"{percent_text(cost.share, 2)} of the time lost")
    return DOT.join(parts)


def plots_text(files: Sequence[Path]) -> str:
    """The plots that were drawn, and their folder."""
    if not files:
        return "nothing to draw yet: the run has no metrics"
    names = ", ".join(file.name for file in files)
    return f"{names} in {near_text(str(files[0].parent))}"


def tracker_text(position: TrackerPosition) -> str:
    """A tracker, what it has received, and where to look at it."""
    if position.finding is not None:
        state = "incomplete"
    else:
        state = "everything sent" if position.is_done else "being sent"
    url = [position.url] if position.url else []
    return DOT.join([str(position.target), state, *url])


def config_text(config: UsedConfig) -> str:
    """A configuration file, and what was taken from it."""
    values = ", ".join(f"{name}={value}" for name, value in config.values.items())
    return f"{home_text(config.file)}: {values or 'nothing used'}"


def shares(split: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Parts of a time with their seconds and shares, the longest first."""
    whole = sum(split.values())
    parts = sorted(split.items(), key=lambda part: -part[1])
    return [
        (name, seconds_text(seconds), percent_text(seconds / whole if whole else 0.0))
        for name, seconds in parts
        if seconds > 0
    ]


def result_text(run: Run) -> str:
    """The metrics that came out of a run: those of the kept weights; empty without a validation."""
    best = run.best_validation
    if best is not None:
        return f"{metrics_text(best.metrics)} (best, at step {count_text(best.step)})"
    return metrics_text(run.validations[-1].metrics) if run.validations else ""


def closing_text(run: Run) -> str:
    """The result of a run."""
    parts = [*filter(None, [result_text(run)]), progress_text(run)]
    if run.ending_reason:
        parts.append(run.ending_reason)
    if run.status not in ("finished", "running"):
        parts.append(
            f"checkpoint at step {count_text(run.checkpoint_step)}"
            if run.checkpoint_step is not None
            else "no checkpoint yet: it would start over"
        )
    return DOT.join(parts)


def utilization_text(used: Utilization) -> str:
    """FLOPs per second, and their share of the limit where one was measured."""
    parts = [quantity_text(used.flops_per_s, "flop/s")]
    if used.share is not None:
        doubt = ", measured while other programs ran" if used.is_limit_doubtful else ""
        share = percent_text(used.share, 0)
        parts.append(f"{share} of this machine's {used.precision} limit (MFU){doubt}")
    return DOT.join(parts)


def speed_text(run: Run) -> str:
    """The rate of a run, and how much of its machine it uses."""
    assert run.utilization is not None
    unit = run.started.unit if run.started else "samples"
    return DOT.join(
        [rate_text(run.utilization.samples_per_s, unit), utilization_text(run.utilization)]
    )


def next_steps(run: Run, *, track: Sequence[str], is_shown: bool = False) -> list[tuple[str, str]]:
    """Suggested commands for a run, by its status, each with its use.

    is_shown: `flatout show` itself is not to be suggested. track: values of `--track` for another
    run like it.
    """
    show = show_command(run.typed)
    return [step for step in _next_steps(run, track) if not (is_shown and step[0] == show)]


def _next_steps(run: Run, track: Sequence[str]) -> list[tuple[str, str]]:
    show = (show_command(run.typed), "recipe and metrics")
    if run.status == "running":
        return [(show_command(run.typed, "--follow"), "watch it"),
                (stop_command(run.typed), "stop it, with a checkpoint")]  # fmt: skip
    if run.status == "failed":
        return [*_after_failure(run, track), show]
    if run.status != "finished":
        return [(resume_run(run), "resume it"), show]
    # A schedule that is over would train it longer at a rate of 0.
    is_over = run.finished is not None and run.finished.is_schedule_over
    epochs, steps = _length(run)
    longer = resume_run(run, epochs=epochs and 2 * epochs, steps=steps and 2 * steps)
    # In Python a resume takes no `steps`.
    is_known = bool(epochs or (steps and not is_of_notebook(run.header.spec)))
    is_longer = not is_over and is_known
    luck = _again(run, track, seed=run.header.spec.seed + 1)
    return [
        show,
        *([(longer, "train it longer")] if is_longer else []),
        *([(luck, "compare with another seed")] if luck else []),
    ]


def _after_failure(run: Run, track: Sequence[str]) -> list[tuple[str, str]]:
    """The command that continues a failed run: with the unchanged file, if it is not the cause."""
    rule, spec = run.failure.rule if run.failure else None, run.header.spec
    if rule in _NOT_OF_THE_FILE or spec.file is None:
        return [(resume_run(run), "resume it")]
    file = near_text(spec.file)
    if run.checkpoint_step is not None:
        command = resume_run(run, is_changed=True)
        return [(command, f"resume it after fixing {file}")]
    again = _again(run, track)
    return [(again, f"try again after fixing {file}")] if again else []


def _again(run: Run, track: Sequence[str], *, seed: int | None = None) -> str | None:
    """The command that makes a run like this one, by another seed or the same."""
    spec = run.header.spec
    if seed is not None:
        spec = msgspec.structs.replace(spec, seed=seed)
    file = near_text(spec.file) if spec.file else None
    is_extended = run.extended is not None and run.status == "finished"
    epochs, steps = _length(run) if is_extended else (None, None)
    change = run.change_for_another(sys.executable)
    change = msgspec.structs.replace(change, epochs=epochs, steps=steps)
    return train_command(spec, change, file=file, track=track)


def _length(run: Run) -> tuple[int | None, int | None]:
    """The length of a run, in epochs or in steps."""
    if run.started is None:
        return None, None
    epochs = run.started.num_epochs
    return epochs, None if epochs else run.started.num_steps


# A plain resume is right after these: the machine, or other files, were at fault.
_NOT_OF_THE_FILE = frozenset((
    "out-of-memory", "gpu-state-lost", "disk-full", "loader-worker-died",
    "data-not-readable", "data-missing", "damaged-data", "rank-lost", "rendezvous-port-taken",
    "compiling-failed", "nondeterministic-operation", "internal-error", "run-in-use",
    "download-failed", "recipe-does-not-fit", "ranks-do-not-fit", "ranks-not-together",
    "ranks-not-placed", "device-not-here", "optimizer-has-no-such-implementation",
    "step-not-captured", "file-not-accessible", "damaged-file", "no-whole-checkpoint",
    "other-checkpoint-format", "image-not-readable", "run-is-finished",
))  # fmt: skip


def plain_name(name: str) -> str:
    """A row's name without the unit that its values are printed with."""
    if name in _PLAIN_NAMES:
        return _PLAIN_NAMES[name]
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


_PLAIN_NAMES = {"samples_per_s": "rate", "train_s": "in all"}


def value_text(name: str, value: Any) -> str:
    """A value with the unit in its name."""
    if value is None:
        return "-"
    if name == "init":
        return init_text(value)
    if name == "file":
        return near_text(value)
    if name == "epochs":
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name == "samples_per_s":
        return rate_text(value)
    if name.endswith("_s"):
        return seconds_text(value)
    if isinstance(value, float):
        return metric_text(name, value)
    return value[:12] if name == "sha256" else typed_value(value)


def proof_text(proof: SmokeTestResult) -> str:
    """Training steps that ran in an environment, and how right they were."""
    losses = " -> ".join(f"{loss:.4g}" for loss in (proof.losses[0], proof.losses[-1]))
    right = "the expected losses" if proof.device == "cpu" else "the CPU's"
    return (
        f"{len(proof.losses) - 1} training steps on {proof.device_name or 'the CPU'}: loss "
        f"{losses}, within {proof.deviation:.0e} of {right}"
    )
