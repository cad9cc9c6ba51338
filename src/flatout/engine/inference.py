"""The kept weights of a run, put to use: predictions, and their metrics once more.

    predictor = flatout.engine.load("digits-0001")
    probabilities = predictor.predict(images)

Nothing of the run is written: it may be training meanwhile, or be a copy on another machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from flatout.engine import precision, randomness
from flatout.engine.batches import placer
from flatout.engine.defaults import changed_recipe
from flatout.engine.evaluation import Measured, measure
from flatout.engine.experiment import Experiment
from flatout.engine.facts import check_model, chosen_device
from flatout.engine.feed import Feed
from flatout.engine.feeds import Reading
from flatout.engine.fitted import fitted_for
from flatout.engine.history import read_history
from flatout.engine.inputs import Unreadable, batches_of
from flatout.engine.loading import kept_spec, load_experiment
from flatout.engine.session import process_settings
from flatout.engine.start import versions_here
from flatout.engine.weights import load_weights, read_weights
from flatout.errors import RunFailed, UsageError
from flatout.nouns.experiment_spec import ExperimentSpec, Value
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.lines import Metric, Validated
from flatout.nouns.recipe import Recipe, fixed_fields
from flatout.nouns.run import RunHeader
from flatout.nouns.units import counted_text
from flatout.system import store
from flatout.system.runs import RunFolder, find_run
from flatout.system.scan import each_line

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
        findings: what cannot be had here as in the run, and settings without effect.
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
        """What the experiment predicts of data, of any of the kinds of `train_data`.

        Args:
            data: in the nesting that the experiment's `predict` takes; without `predict`, the
                model's input.
            batch_size: samples computed at once; None takes the experiment's. It decides about
                memory and speed, and changes results by rounding alone.

        Returns:
            A tensor on the CPU, a list, or a dict of such, with an entry for each sample in order.

        Raises:
            UsageError: bad-prediction.
            ValueError: the data is empty.
        """
        size = batch_size or self.experiment.batch_size
        found = []
        with self._fitted():
            for batch in batches_of([""], lambda _: data, size, self.experiment.collate):
                if isinstance(batch, Unreadable):
                    raise batch.error
                found.append(self.compute(batch.content, len(batch.rows)))
        return _joined(found)

    def compute(self, batch: Any, num_samples: int) -> Any:
        """What the experiment predicts of one batch that lies in the computer's memory."""
        place = placer(self.device, self.recipe.memory_format.value == "channels_last")
        with process_settings(self.recipe), torch.inference_mode():
            placed = place(batch) if place is not None else batch
            with precision.autocast(self.recipe.precision.value, self.device)():
                found = (self.experiment.predict or self._plain)(self.model, placed)
            return _on_cpu(found, num_samples)

    def evaluate(self, *, batch_size: int | None = None) -> Measured:
        """The metrics over the whole validation data, as a validation in training computes them.

        Args:
            batch_size: samples at once; None takes the run's, and so its rounding.

        Returns:
            `metrics` by name, and `confusions` by theirs.

        Raises:
            UsageError: no-validation-data.
        """
        experiment = self.experiment
        if batch_size is not None:
            experiment = replace(experiment, batch_size=batch_size)
        untouched = randomness.untouched_generators(self.device)
        with self._fitted(), process_settings(self.recipe), untouched:
            reading = Reading(experiment=experiment, recipe=self.recipe, seed=self.seed)
            randomness.seed_generators(randomness.mixed_seed(self.seed, "evaluation"))
            feed = reading.validation_feed(self.device)
            if feed is None:
                raise UsageError(
                    "no-validation-data",
                    "the experiment has no validation data to evaluate on.",
                    fix="give the experiment `validation_data`, and its weights to it with --init",
                )
            try:
                return measure(_Kept(self, experiment, feed))
            finally:
                feed.close()

    def _fitted(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.folder is None else fitted_for(self.folder)

    def _plain(self, model: nn.Module, batch: Any) -> Any:
        """What a model gives whose experiment has no `predict`."""
        if isinstance(batch, Mapping):
            found = model(**batch)
        else:
            found = model(*batch) if isinstance(batch, list | tuple) else model(batch)
        if isinstance(found, Mapping) and "logits" in found:
            # The models of the transformers library.
            found = found["logits"]
        labels = self.experiment.labels
        is_scores = isinstance(found, Tensor) and found.dim() == 2
        if labels is not None and is_scores and found.shape[1] == len(labels):
            return found.float().softmax(dim=1)
        return found


class _Kept:
    """Kept weights as validation sees them."""

    def __init__(self, predictor: Predictor, experiment: Experiment, feed: Feed) -> None:
        recipe = predictor.recipe
        self.experiment = experiment
        self.validation_feed: Feed | None = feed
        self.place = placer(predictor.device, recipe.memory_format.value == "channels_last")
        self.autocast = precision.autocast(recipe.precision.value, predictor.device)
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
        use: recipe fields that are to be other than the run's, such as
            `{"device": "cpu", "precision": "bf16"}`.
        parameters: arguments of `experiment(...)` that are to be other than the run's.
        experiment: in place of the one that the run keeps: the experiment itself, as for a run that
            was made in a notebook; or a built-in's name or a file, which gets the run's parameters.
        device: where to compute; a shorter way to write `use={"device": ...}`.

    Raises:
        UsageError: unknown-run, weights-not-found, weights-not-readable, weights-do-not-fit,
            experiment-not-kept, experiment-changed, device-not-here, precision-not-here.
    """
    folder = find_run(str(run))
    spec = store.read_json(folder.header, RunHeader).spec
    _require_weights(folder)
    tensors, metadata = read_weights(folder.weights)
    step = int(metadata.get("step", 0))
    with fitted_for(folder):
        if not isinstance(experiment, Experiment):
            experiment = _rebuilt(folder, spec, parameters or {}, experiment)
        trained = _recipe_of(folder, step)
        recipe, findings = _recipe_here(trained, fixed_fields(use, device))
        place = chosen_device(recipe.device.value)
        with randomness.untouched_generators(place):
            randomness.seed_generators(randomness.mixed_seed(spec.seed, "model"))
            model = check_model(experiment.model(), experiment).to(place)
    if recipe.memory_format.value == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    load_weights(model, tensors, folder.weights, are_own=True)
    return Predictor(
        model=model.eval(),
        experiment=experiment,
        recipe=recipe,
        device=place,
        step=step,
        recorded=_recorded(folder, step),
        findings=tuple(findings),
        differences=tuple(_differences(folder, trained, recipe, place)),
        seed=spec.seed,
        folder=folder,
    )


def _require_weights(folder: RunFolder) -> None:
    if not folder.weights.is_file():
        raise UsageError(
            "weights-not-found",
            f"the run {folder.path.name} has no weights yet.",
            because=f"{folder.weights} is missing",
            fix="choose a run that has been validated or finished: flatout runs",
        )


def _rebuilt(
    folder: RunFolder,
    spec: ExperimentSpec,
    parameters: Mapping[str, Value],
    source: str | Path | None,
) -> Experiment:
    """The experiment as the run was begun with it, but for these parameters; or that of a source,
    a built-in's name or a file.
    """
    given = spec.parameters | dict(parameters)
    if source is not None:
        path = Path(source).expanduser().absolute()
        file = str(path) if path.suffix == ".py" else None
        name = str(source) if file is None else path.stem
        return load_experiment(ExperimentSpec(name=name, file=file, parameters=given))
    if spec.name == "notebook" and spec.file is None:
        raise UsageError(
            "experiment-not-kept",
            f"the run {folder.path.name} was made in a notebook and has no experiment file.",
            fix="load it there: flatout.engine.load(run, experiment=...)",
        )
    kept = msgspec.structs.replace(kept_spec(folder, spec), parameters=given)
    return load_experiment(kept, copy_of=spec.file)


def _recipe_of(folder: RunFolder, step: int) -> Recipe:
    """The recipe under which the weights of that step were made and validated."""
    recipe = read_history(folder).recipe_at(max(step - 1, 0))
    if recipe is None:
        raise RunFailed(
            "damaged-file",
            f"the run {folder.path.name} has weights, and no recipe they were made with.",
            because=f"{folder.events} does not tell one",
            fix="restore it from a copy",
        )
    return recipe


def _recipe_here(recipe: Recipe, fixed: dict[str, Any]) -> tuple[Recipe, list[Finding]]:
    """The run's recipe with what the person fixed; and what of it cannot be had here."""
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
        # As a run that was begun here would have it.
        changes["deterministic"] = device.type == "cpu"
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
        problem=f"`{name}` is {value} here, other than in the run; results may differ a little.",
        because=f"{error.problem} {error.because}",
        fixes=(Fix(text=f"choose it yourself: --use {name}={value}"),),
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
    found = [line.metrics for line in lines if isinstance(line, Validated) and line.step == step]
    return dict(found[-1]) if found else {}


def _on_cpu(found: Any, num_samples: int) -> Any:
    """Predictions as they leave the device: tensors of numbers that Python knows, and lists."""
    if isinstance(found, Mapping):
        parts = {name: part for name, part in found.items() if isinstance(part, Tensor | list)}
        if parts:
            return {str(name): _on_cpu(part, num_samples) for name, part in parts.items()}
    if isinstance(found, Tensor) and found.dim() > 0 and len(found) == num_samples:
        is_short = found.dtype in (torch.bfloat16, torch.float16)
        return (found.float() if is_short else found).cpu()
    if isinstance(found, list | tuple) and len(found) == num_samples:
        return list(found)
    what = f"a {type(found).__name__}"
    if isinstance(found, Tensor):
        what = f"a tensor of shape {tuple(found.shape)}"
    elif isinstance(found, list | tuple):
        what += f" of {len(found)}"
    raise UsageError(
        "bad-prediction",
        f"{what} was predicted for a batch of {counted_text(num_samples, 'sample')}.",
        because="there must be one entry for each sample, in a tensor, a list, or a dict of these",
        fix="give the experiment a `predict` that returns such; see flatout docs predict",
    )


def _joined(parts: list[Any]) -> Any:
    """The predictions of several batches as those of one."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return torch.cat(parts)
