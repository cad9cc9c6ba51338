"""Writes what all frameworks are given, so that they compute the same:
`python -m flatout.engine.bench.framework_data`.

Data, initial weights and the order of samples come from a built-in experiment, as flatout's own
training has them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatout.engine.bench.meta_counts import counted_flops
from flatout.engine.runtime import rng
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import BuiltExperiment, build
from flatout.errors import UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.framework_protocol import FrameworkData, FrameworkDataRequest, Layer
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

# Mean and standard deviation of MNIST's pixels, as experiments/mnist.py has them.
_PIXELS = (0.1307, 0.3081)


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    try:
        request = stdio.read(FrameworkDataRequest)
        stdio.exit_when_closed()
        stdio.answers.write(write_data(request))
    except UsageError as error:
        stdio.answers.write(ProcessFailed(finding=finding_from(error), exit_code=error.exit_code))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        stdio.answers.write(ProcessFailed(finding=internal_error(error), exit_code=3))
        return 3
    return 0


def write_data(request: FrameworkDataRequest) -> FrameworkData:
    """Writes one file of data, and for each seed one of weights and order."""
    spec = ExperimentSpec(name=request.experiment, parameters=request.parameters)
    experiment = load_experiment(spec)
    folder = Path(request.folder)
    built = build(experiment, request.seeds[0], request.device)
    inputs, targets = (tensor.cpu() for tensor in built.train_data)
    num_samples = full_batches(len(inputs), experiment.batch_size, request.num_samples)
    assert experiment.validation_data is not None
    validation = [one[: request.num_validation] for one in experiment.validation_data()]
    data_file = folder / "data.npz"
    np.savez(
        data_file,
        train_inputs=inputs[:num_samples].numpy(), train_targets=targets[:num_samples].numpy(),
        validation_inputs=validation[0].numpy(), validation_targets=validation[1].numpy(),
    )  # fmt: skip
    weights_files = []
    for seed in request.seeds:
        own = build(experiment, seed, request.device, built.train_data)
        path = folder / f"weights-{seed}.npz"
        values = {
            str(number): parameter.detach().cpu().numpy()
            for number, parameter in enumerate(own.model.parameters())
        }
        order = order_of(num_samples, experiment.batch_size, seed, request.num_epochs)
        np.savez(path, order=order, **values)  # type: ignore[arg-type]
        weights_files.append(str(path))
    layers = tuple(layers_of(built.model, inputs[:1]))
    return FrameworkData(
        torch=str(torch.__version__),
        data_file=str(data_file),
        weights_files=tuple(weights_files),
        layers=layers,
        loss="mse" if targets.is_floating_point() else "cross-entropy",
        optimizer=optimizer_of(built),
        pixels=_PIXELS if inputs.dtype == torch.uint8 else None,
        batch_size=experiment.batch_size,
        num_samples=num_samples,
        num_parameters=sum(parameter.numel() for parameter in built.model.parameters()),
        flops_per_step=counted_flops(experiment, built.train_data)[0],
    )


def full_batches(num_samples: int, batch_size: int, most: int | None) -> int:
    """How many samples are used: those of full batches, so that every step has as many."""
    used = min(num_samples, most) if most is not None else num_samples
    return used // batch_size * batch_size


def order_of(num_samples: int, batch_size: int, seed: int, num_epochs: int) -> np.ndarray:
    """The samples of each step, (steps, batch): the same ones as flatout's own feed takes."""
    epochs = [rng.sample_order(num_samples, seed, epoch, True) for epoch in range(num_epochs)]
    return torch.cat(epochs).reshape(-1, batch_size).to(torch.int32).numpy()


def layers_of(model: nn.Module, sample: Tensor) -> Iterator[Layer]:
    """The layers of a sequence, with what flatten gets from the one before.

    Raises:
        TypeError: a layer that the programs do not have.
    """
    values = sample.cpu().float()
    for layer in model.cpu().eval():  # type: ignore[attr-defined]
        if isinstance(layer, nn.Flatten):
            yield ["flatten", *values.shape[1:]]
        else:
            yield _layer(layer)
        with torch.no_grad():
            values = layer(values)


def _layer(layer: nn.Module) -> Layer:
    if isinstance(layer, nn.Linear):
        return ["linear", layer.in_features, layer.out_features]
    if isinstance(layer, nn.Conv2d) and layer.stride == (1, 1) and layer.padding == (0, 0):
        return ["conv", layer.in_channels, layer.out_channels, layer.kernel_size[0]]
    if isinstance(layer, nn.MaxPool2d):
        assert isinstance(layer.kernel_size, int)
        return ["maxpool", layer.kernel_size]
    if isinstance(layer, nn.Dropout):
        return ["dropout", layer.p]
    if isinstance(layer, nn.ReLU):
        return ["relu"]
    raise TypeError(f"no program trains {layer}")


def optimizer_of(built: BuiltExperiment) -> dict[str, Any]:
    """The optimizer with every option set explicitly, because the defaults of frameworks differ."""
    optimizer = built.optimizers.only
    options = optimizer.defaults
    if isinstance(optimizer, torch.optim.Adam):
        return {"name": "adam", "lr": options["lr"], "betas": list(options["betas"]),
                "eps": options["eps"]}  # fmt: skip
    if isinstance(optimizer, torch.optim.Adadelta):
        return {"name": "adadelta", "lr": options["lr"], "rho": options["rho"],
                "eps": options["eps"]}  # fmt: skip
    raise TypeError(f"no program has {type(optimizer).__name__}")


if __name__ == "__main__":
    end(main())
