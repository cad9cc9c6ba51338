"""The kept weights of a run, put to use: predictions, and their metrics once more.

    predictor = flatout.engine.load("digits-0001")
    probabilities = predictor.predict(images)

Nothing of the run is written: it may be training in the meantime, or be a copy on another machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from flatout.engine.data.fitted import fitted_for
from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import Feed
from flatout.engine.feed.select_feed import FeedOptions
from flatout.engine.model import precision
from flatout.engine.predict.inputs import UnreadableInput, batches_of, together
from flatout.engine.recipe.default_recipe import changed_recipe
from flatout.engine.recipe.experiment_facts import check_model
from flatout.engine.runlog.history import read_history
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device, on_device, prepare_products
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.runtime.user_code import kind_text
from flatout.engine.session.load_experiment import load_experiment, stored_spec
from flatout.engine.session.session import process_settings
from flatout.engine.session.validation import ValidationResult, measure
from flatout.engine.tensors.nested import placer
from flatout.engine.training.run_checks import versions_here
from flatout.engine.training.weights_file import load_weights, read_weights
from flatout.errors import RunFailed, UsageError
from flatout.schema.experiment_spec import ExperimentSpec, Value
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import Recipe, fixed_fields
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Metric, Validated
from flatout.schema.units import counted_text
from flatout.system import atomic_files
from flatout.system.store.jsonl_scan import each_line
from flatout.system.store.run_folder import RunFolder, find_run

# Fields of the recipe that change something where nothing is trained.
_OF_USE = {
    "device", "precision", "memory_format", "num_threads", "deterministic", "data_path",
    "micro_batch_size", "loader_workers", "loader_prefetch", "loader_pin_memory",
    "loader_persistent",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A trained model, ready to be used.

    Args:
        model: with the kept weights, in evaluation mode, on the device.
        experiment: what was trained.
        recipe: how it is computed here.
        device: where.
        step: after how many updates the weights were kept.
        recorded: the metrics that the run recorded of them; empty without validation data.
        findings: settings of the run that are not supported here, and settings without effect.
        differences: what may make results differ from the run's own, as `name=value`.
        seed: the run's.
        folder: of the run, which has the preprocessing that was computed from its training data.
    """

    model: nn.Module
    experiment: Experiment
    recipe: Recipe
    device: torch.device
    step: int
    recorded: dict[str, float | None]
    findings: tuple[Finding, ...] = ()
    differences: tuple[str, ...] = ()
    seed: int = 0
    folder: RunFolder | None = None

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """The experiment's predictions for data, of any of the kinds of `train_data`.

        Args:
            data: in the nesting that the experiment's `predict` takes; without `predict`, the
                model's input.
            batch_size: samples per batch; None takes the experiment's. It decides about
                memory and speed, and changes results by rounding alone.

        Returns:
            A tensor on the CPU, a list, or a dict of such, with an entry for each sample in order.

        Raises:
            UsageError: bad-prediction.
            ValueError: the data is empty.
        """
        size = batch_size or self.experiment.batch_size
        predictions = []
        with self.fitted(), process_settings(self.recipe):
            try:
                for batch in batches_of([""], lambda _: data, size, self.experiment.collate):
                    if isinstance(batch, UnreadableInput):
                        raise batch.error
                    predictions.append(self.compute(batch.content, len(batch.rows)))
            finally:
                self.placement.release()
        return _joined(predictions)

    def compute(self, batch: Any, num_samples: int) -> Any:
        """The experiment's prediction for one batch in the computer's memory.

        OpenMP's threads stay placed until `placement.release()`, or the end of the process.
        """
        to_device = placer(self.device, self.recipe.memory_format.value == "channels_last")
        with on_device(self.device), process_settings(self.recipe), torch.inference_mode():
            placed = to_device(batch) if to_device is not None else batch
            with precision.autocast(self.recipe.precision.value, self.device)(), self.placement:
                predictions = self.call(placed)
            return on_cpu(predictions, num_samples)

    @cached_property
    def placement(self) -> ThreadPlacement:
        """Of the threads that compute: one for all batches, because it watches several."""
        return ThreadPlacement(self.device)

    def place_threads(self) -> None:
        """Has the first batch computed with threads placed; takes about a tenth of a second.

        A batch may be the only one, and take long: a text is generated token by token.
        """
        with process_settings(self.recipe):
            self.placement.find()

    def call(self, batch: Any) -> Any:
        """What `predict` of the experiment, or else the model, makes of a batch on the device."""
        return (self.experiment.predict or self._plain)(self.model, batch)

    def collated(self, samples: list[Any]) -> Any:
        """A batch of samples, as `predict` takes it."""
        return (self.experiment.collate or together)(samples)

    def evaluate(self, *, batch_size: int | None = None) -> ValidationResult:
        """The metrics over the whole validation data, as a validation in training computes them.

        Args:
            batch_size: samples per batch; None takes the run's, and so its rounding.

        Returns:
            `metrics` by name, and `confusions` by theirs.

        Raises:
            UsageError: no-validation-data.
        """
        experiment = self.experiment
        if batch_size is not None:
            experiment = replace(experiment, batch_size=batch_size)
        untouched = rng.untouched_generators(self.device)
        with self.fitted(), on_device(self.device), process_settings(self.recipe), untouched:
            reading = FeedOptions(experiment=experiment, recipe=self.recipe, seed=self.seed)
            rng.seed_generators(rng.mixed_seed(self.seed, "evaluation"))
            feed = reading.validation_feed(self.device)
            if feed is None:
                raise UsageError(
                    "no-validation-data",
                    "the experiment has no validation data to evaluate on.",
                    fix="define `validation_data` in the experiment, and load the weights with "
                    "--init",
                )
            weights = _SavedWeights(self, experiment, feed)
            try:
                return measure(weights)
            finally:
                weights.placement.release()
                feed.close()

    def fitted(self) -> AbstractContextManager[None]:
        """Makes fitted functions return the values that the run has kept."""
        return contextlib.nullcontext() if self.folder is None else fitted_for(self.folder)

    def _plain(self, model: nn.Module, batch: Any) -> Any:
        """The output of the model, for an experiment without `predict`."""
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, list | tuple) else model(batch)
        if isinstance(output, Mapping) and "logits" in output:
            # The models of the transformers library.
            output = output["logits"]
        labels = self.experiment.labels
        is_scores = isinstance(output, Tensor) and output.dim() == 2
        if labels is not None and is_scores and output.shape[1] == len(labels):
            return output.float().softmax(dim=1)
        return output


class _SavedWeights:
    """Kept weights as validation sees them."""

    def __init__(self, predictor: Predictor, experiment: Experiment, feed: Feed) -> None:
        recipe = predictor.recipe
        self.experiment = experiment
        self.validation_feed: Feed | None = feed
        self.to_device = placer(predictor.device, recipe.memory_format.value == "channels_last")
        self.autocast = precision.autocast(recipe.precision.value, predictor.device)
        self.placement = ThreadPlacement(predictor.device)
        self._model = predictor.model

    def evaluated(self) -> AbstractContextManager[nn.Module]:
        return contextlib.nullcontext(self._model)


def load(
    run: str | Path,
    *,
    use: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Value] | None = None,
    experiment: Experiment | str | Path | None = None,
    device: str | None = None,
) -> Predictor:
    """Builds a run's experiment again and gives its model the weights that the run has kept.

    These are the best by validation (the averaged ones with `ema`), without validation the last;
    of a run that still trains, the best so far.

    Args:
        run: its id, the beginning of it, `last`, or its folder, written with a separator. The
            experiment.py in that folder is run: give only a folder that you trust.
        use: recipe fields that should differ from the run's, such as
            `{"device": "cpu", "precision": "bf16"}`.
        parameters: arguments of `experiment(...)` that should differ from the run's.
        experiment: in place of the one that the run keeps: the experiment itself, as for a run that
            was made in a notebook; or a built-in's name or a file, which gets the run's parameters.
        device: where to compute; a shorter way to write `use={"device": ...}`.

    Raises:
        UsageError: unknown-run, weights-not-found, weights-not-readable, weights-do-not-fit,
            experiment-not-kept, experiment-changed, device-not-here, precision-not-here.
    """
    prepare_products()
    folder = find_run(str(run))
    spec = atomic_files.read_json(folder.header, RunHeader).spec
    _require_weights(folder)
    tensors, metadata = read_weights(folder.weights)
    step = int(metadata.get("step", 0))
    with fitted_for(folder):
        if not isinstance(experiment, Experiment):
            experiment = _rebuilt(folder, spec, parameters or {}, experiment)
        trained = _recipe_of(folder, step)
        recipe, findings = _recipe_here(trained, fixed_fields(use, device))
        torch_device = chosen_device(recipe.device.value)
        with rng.untouched_generators(torch_device):
            rng.seed_generators(rng.mixed_seed(spec.seed, "model"))
            model = check_model(experiment.model(), experiment).to(torch_device)
    if recipe.memory_format.value == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    load_weights(model, tensors, folder.weights, are_own=True)
    return Predictor(
        model=model.eval(),
        experiment=experiment,
        recipe=recipe,
        device=torch_device,
        step=step,
        recorded=_recorded(folder, step),
        findings=tuple(findings),
        differences=tuple(_differences(folder, trained, recipe, torch_device)),
        seed=spec.seed,
        folder=folder,
    )


def _require_weights(folder: RunFolder) -> None:
    if not folder.weights.is_file():
        raise UsageError(
            "weights-not-found",
            f"run {folder.path.name} has no weights yet.",
            because=f"{folder.weights} is missing",
            fix="choose a run that has been validated or finished: flatout runs",
        )


def _rebuilt(
    folder: RunFolder,
    spec: ExperimentSpec,
    parameters: Mapping[str, Value],
    source: str | Path | None,
) -> Experiment:
    """The experiment the run was started with, except for these parameters; or that of a source,
    a built-in's name or a file.
    """
    merged = spec.parameters | dict(parameters)
    if source is not None:
        path = Path(source).expanduser().absolute()
        file = str(path) if path.suffix == ".py" else None
        name = str(source) if file is None else path.stem
        return load_experiment(ExperimentSpec(name=name, file=file, parameters=merged))
    if spec.name == "notebook" and spec.file is None:
        raise UsageError(
            "experiment-not-kept",
            f"run {folder.path.name} was created in a notebook and has no experiment file.",
            fix="load it there: flatout.engine.load(run, experiment=...)",
        )
    stored = msgspec.structs.replace(stored_spec(folder, spec), parameters=merged)
    return load_experiment(stored, copy_of=spec.file)


def _recipe_of(folder: RunFolder, step: int) -> Recipe:
    """The recipe under which the weights of that step were made and validated."""
    recipe = read_history(folder).recipe_at(max(step - 1, 0))
    if recipe is None:
        raise RunFailed(
            "damaged-file",
            f"run {folder.path.name} has weights, but not the recipe they were trained with.",
            because=f"{folder.events} contains no recipe",
            fix="restore it from a copy",
        )
    return recipe


def _recipe_here(recipe: Recipe, fixed: dict[str, Any]) -> tuple[Recipe, list[Finding]]:
    """The run's recipe with what the user fixed; and findings on what is not supported here."""
    findings = [
        _without_effect(name)
        for name, value in fixed.items()
        # Every sample is read once.
        if name not in _OF_USE or (name, value) == ("data_path", "cached")
    ]
    changes = dict(fixed)
    if "device" not in fixed:
        try:
            chosen_device(recipe.device.value)
        except UsageError as error:
            changes["device"] = str(chosen_device(None))
            findings.append(_other_than_in_the_run("device", changes["device"], error))
    device = chosen_device(changes.get("device", recipe.device.value))
    if "precision" in fixed:
        precision.check_precision(fixed["precision"], device)
    else:
        try:
            precision.check_precision(recipe.precision.value, device)
        except UsageError as error:
            changes["precision"] = "fp32"
            findings.append(_other_than_in_the_run("precision", "fp32", error))
    if "deterministic" not in fixed and device.type != torch.device(recipe.device.value).type:
        # As in a run started here.
        changes["deterministic"] = device.type == "cpu"
    try:
        precision.check_repeatable(changed_recipe(recipe, changes), device)
    except UsageError as error:
        if "deterministic" in fixed:
            raise
        changes["deterministic"] = False
        findings.append(_other_than_in_the_run("deterministic", "false", error))
    return changed_recipe(recipe, changes), findings


def _differences(
    folder: RunFolder, trained: Recipe, recipe: Recipe, device: torch.device
) -> Iterator[str]:
    for name in sorted(_OF_USE):
        if getattr(trained, name).value != getattr(recipe, name).value:
            yield f"{name}={getattr(recipe, name).value}"
    before = read_history(folder).versions or {}
    for name, version in versions_here(device).items():
        if before.get(name) != version:
            yield f"{name} {version}"


def _other_than_in_the_run(name: str, value: str, error: UsageError) -> Finding:
    return Finding(
        rule="other-than-in-the-run",
        severity="warning",
        problem=f"`{name}` is {value} here, unlike in the run; results may differ slightly.",
        because=f"{error.problem} {error.because}",
        fixes=(Fix(text=f"set it yourself: --use {name}={value}"),),
    )


def _without_effect(name: str) -> Finding:
    return Finding(
        rule="setting-without-effect",
        severity="warning",
        problem=f"`{name}` has no effect here.",
        because="nothing is trained",
        fixes=(Fix(text=f"leave --use {name} out"),),
    )


def _recorded(folder: RunFolder, step: int) -> dict[str, float | None]:
    lines = each_line(folder.metrics, Metric, [b'"validated"'])
    metrics = [line.metrics for line in lines if isinstance(line, Validated) and line.step == step]
    return dict(metrics[-1]) if metrics else {}


def on_cpu(predictions: Any, num_samples: int) -> Any:
    """Predictions as they leave the device: tensors of numbers that Python knows, and lists."""
    if isinstance(predictions, Mapping):
        parts = {
            name: part for name, part in predictions.items() if isinstance(part, Tensor | list)
        }
        if parts:
            return {str(name): on_cpu(part, num_samples) for name, part in parts.items()}
    if (
        isinstance(predictions, Tensor)
        and predictions.dim() > 0
        and len(predictions) == num_samples
    ):
        is_short = predictions.dtype in (torch.bfloat16, torch.float16)
        return (predictions.float() if is_short else predictions).cpu()
    if isinstance(predictions, list | tuple) and len(predictions) == num_samples:
        return list(predictions)
    what = kind_text(predictions)
    if isinstance(predictions, Tensor):
        what = f"a tensor of shape {tuple(predictions.shape)}"
    elif isinstance(predictions, list | tuple):
        what += f" of length {len(predictions)}"
    raise UsageError(
        "bad-prediction",
        f"{what} was predicted for a batch of {counted_text(num_samples, 'sample')}.",
        because="there must be one entry per sample, in a tensor, a list, or a dict of these",
        fix="define a `predict` that returns this in the experiment; see flatout docs predict",
    )


def _joined(parts: list[Any]) -> Any:
    """The predictions of several batches as those of one."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return torch.cat(parts)
