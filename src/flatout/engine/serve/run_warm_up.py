"""What a run's replica does before it answers: finds samples, tries what is faster, measures."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flatout.engine.serve.batch_times import best_size, clock_for, measured_sizes
from flatout.engine.serve.inference_recipe import SpeedTrial
from flatout.engine.serve.input_reader import named_tensors, specs_of
from flatout.engine.serve.sample_inputs import SampleInputs, find_sample_inputs
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.serve_model import InputKind, ServedModel, TensorSpec
from flatout.schema.serve_protocol import AnyInput, ReplicaStart, TextInput, ValueInput

if TYPE_CHECKING:
    from flatout.engine.serve.run_model import RunModel

# Samples of the data, for measuring and as an example.
_NUM_SAMPLES = 8


def warmed_up(model: RunModel, start: ReplicaStart) -> Generator[str, None, ServedModel]:
    """Makes a model ready; yields what it does, and describes the model."""
    yield "computing the first batch"
    predictor, experiment, reader = model.predictor, model.predictor.experiment, model.reader
    samples = find_sample_inputs(predictor, reader, _NUM_SAMPLES)
    recipe: list[str] = []
    outputs: tuple[TensorSpec, ...] = ()
    if samples is not None:
        if samples.is_tensors:
            reader.layout, reader.specs = samples.content, specs_with_varying(samples)
        trial = SpeedTrial(model, start, samples)
        recipe = yield from trial.choose()
        outputs = output_specs(trial.plain)
    example = _example(samples)
    batch_s: dict[int, float] = {}
    if example is not None:
        model.usual_keys = {reader.read(example).key}
        clock = clock_for(predictor.device.type, torch.get_num_threads())
        model.measure_batches = partial(
            measured_sizes, model, example, start.latency_s, start.max_samples, clock
        )
        batch_s = yield from model.measure_batches()
    name = predictor.folder.path.name if predictor.folder is not None else "model"
    return ServedModel(
        name=name,
        version=f"{name}.{predictor.step}",
        format="run",
        inputs=reader.specs,
        outputs=outputs,
        accepts=_accepted(model, samples),
        can_stream=experiment.stream is not None,
        has_decode=experiment.decode is not None,
        labels=None if experiment.labels is None else tuple(experiment.labels),
        example=_json_value(example),
        device=str(predictor.device),
        precision=predictor.recipe.precision.value,
        recipe=tuple(recipe),
        batch_s=batch_s,
        max_samples=start.max_samples or best_size(batch_s, start.latency_s),
        unit=experiment.unit,
        num_threads=torch.get_num_threads() if predictor.device.type == "cpu" else None,
    )


def specs_with_varying(samples: SampleInputs) -> tuple[TensorSpec, ...]:
    """The tensors of the samples, with None for sizes that depend on the input."""
    specs = specs_of(samples.content)
    varying = samples.varying or (frozenset(),) * len(specs)
    return tuple(
        TensorSpec(
            name=spec.name,
            dtype=spec.dtype,
            shape=tuple(None if place in places else size for place, size in enumerate(spec.shape)),
        )
        for spec, places in zip(specs, varying, strict=True)
    )


def output_specs(predictions: Any) -> tuple[TensorSpec, ...]:
    """The tensors of predictions."""
    return tuple(
        TensorSpec(
            name=name,
            dtype=str(part.dtype).removeprefix("torch."),
            shape=(None, *part.shape[1:]),
        )
        for name, part in named_tensors(predictions).items()
    )


def _example(samples: SampleInputs | None) -> AnyInput | None:
    """An input with one sample."""
    if samples is None or samples.given is not None or not samples.is_tensors:
        return None if samples is None else samples.given
    first = [tensor[0].tolist() for tensor in tensors_in(samples.content)]
    names = [spec.name for spec in specs_of(samples.content)]
    return ValueInput(first[0] if len(first) == 1 else dict(zip(names, first, strict=True)))


def json_example(samples: SampleInputs) -> object:
    """A JSON value with one sample; None where only a file makes sense."""
    return _json_value(_example(samples))


def _json_value(example: AnyInput | None) -> object:
    if isinstance(example, ValueInput):
        return example.value
    return example.text if isinstance(example, TextInput) else None


def _accepted(model: RunModel, samples: SampleInputs | None) -> tuple[InputKind, ...]:
    experiment, has_tensors = model.predictor.experiment, model.reader.layout is not None
    is_text = samples is not None and isinstance(samples.given, TextInput)
    can_decode, can_read = experiment.decode is not None, experiment.predict_data is not None
    is_accepted: dict[InputKind, bool] = {
        "tensors": has_tensors,
        "file": can_decode or can_read or not has_tensors,
        "text": is_text,
        "value": can_decode or has_tensors,
    }
    return tuple(kind for kind, accepted in is_accepted.items() if accepted)
