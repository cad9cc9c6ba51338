"""The models that no_regret.py measures, and the grid of recipes that its oracle chooses from.

Both are declared here, and not adjusted to what a search finds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.engine.recipe.experiment_facts import ExperimentFacts

ZOO = Path(__file__).parent / "zoo"
LARGEST_GRID = 48


@dataclass(frozen=True, kw_only=True)
class Model:
    """An experiment as it is named on the command line.

    file: None for a built-in. has_attention: it calls torch's scaled_dot_product_attention.
    """

    name: str
    stresses: str
    file: Path | None = None
    has_attention: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """The arguments of `flatout tune`."""
        settings = [
            part for item in self.parameters.items() for part in ("-s", "=".join(map(str, item)))
        ]
        return [str(self.file or self.name), *settings]


def _zoo(name: str, stresses: str) -> Model:
    has_attention = stresses.startswith("attention")
    return Model(name=name, stresses=stresses, file=ZOO / f"{name}.py", has_attention=has_attention)


def _tiny(name: str, stresses: str) -> Model:
    has_attention = stresses.startswith("attention")
    return Model(
        name=name, stresses=stresses, has_attention=has_attention, parameters={"size": "tiny"}
    )


def _timm(model: str, stresses: str) -> Model:
    """A model that people download and train; needs timm and torchvision."""
    file = Path(__file__).with_name("timm_pictures.py")
    return Model(name=model, stresses=stresses, file=file, parameters={"model": model})


_ALL = (
    Model(name="mlp", stresses="overhead"),
    Model(name="digits", stresses="overhead, BatchNorm"),
    Model(name="mnist", stresses="small convolutions"),
    _tiny("mnist-large", "one large product"),
    _tiny("resnet50", "convolutions, BatchNorm"),
    _tiny("charlm", "attention"),
    _tiny("lstm-text", "recurrence"),
    _tiny("unet-denoise", "convolutions, samples with noise"),
    _tiny("vit-mnist", "attention, clipping"),
    _tiny("bert-large", "attention, padding, samples with masks"),
    _tiny("gpt3-small", "attention, a large head"),
    _zoo("lstm_sensors", "recurrence"),
    _zoo("unet_cells", "3 x 3 convolutions"),
    _zoo("vit_pictures", "attention"),
    _zoo("graph_molecules", "gather and index_add"),
    _zoo("instance_volumes", "InstanceNorm3d"),
    _zoo("unequal_lengths", "shapes that change, a sum and its count"),
    _zoo("batchnorm_resnet", "BatchNorm"),
    _zoo("sparse_ratings", "sparse gradients"),
    _zoo("branching_depth", "a Python branch"),
    _zoo("wide_mlp", "matrix products"),
    _zoo("tiny_batch", "overhead"),
    _zoo("decoded_pictures", "the data"),
    _zoo("attention_words", "attention with dropout"),
    _zoo("adadelta_pictures", "Adadelta"),
    _zoo("rmsprop_frames", "RMSprop"),
    _zoo("own_gradient", "an autograd.Function"),
    _zoo("frozen_features", "frozen layers"),
    _zoo("tied_head", "one weight in two places"),
    _timm("resnet18", "convolutions, BatchNorm"),
    _timm("mobilenetv3_small_100", "depthwise convolutions"),
    _timm("convnext_atto", "depthwise convolutions, LayerNorm"),
    _timm("vit_tiny_patch16_224", "attention, as timm writes it"),
)
MODELS = {model.name: model for model in _ALL}

# The default models: every kind of step, in a reasonable time.
CHOSEN = (
    "mlp", "mnist", "resnet50", "charlm", "unet-denoise", "vit-mnist", "lstm_sensors", "unet_cells",
    "vit_pictures", "graph_molecules", "instance_volumes", "unequal_lengths", "batchnorm_resnet",
    "sparse_ratings", "branching_depth", "wide_mlp", "decoded_pictures", "own_gradient",
)  # fmt: skip
QUICK = ("mlp", "wide_mlp")


def grid(
    model: Model, facts: ExperimentFacts, optimizers: tuple[str, ...], numerics: str
) -> list[dict[str, Any]]:
    """The recipes that the oracle knows, as recipe fields: all combinations that apply.

    Args:
        model: whose.
        facts: of experiment and device.
        optimizers: the implementations that the experiment's optimizer has.
        numerics: `strict` allows no other number format.
    """
    is_cpu = facts.device.type == "cpu"
    axes: dict[str, list[Any]] = {
        "precision": ["fp32"] if numerics == "strict" else ["fp32", "bf16"],
        "memory_format": ["contiguous", "channels_last"]
        if facts.has_convolutions
        else ["contiguous"],
        "attention": ["auto", "math"] if model.has_attention and is_cpu else ["auto"],
        "optimizer_implementation": _optimizers(optimizers),
        "num_threads": sorted({1, facts.num_cores}) if is_cpu else [facts.num_threads],
    }
    if facts.data_kind == "tensors":
        # BatchNorm would see other statistics, and then it is another training. With attention
        # there are enough recipes without.
        sizes = [1] if facts.has_batch_norm or model.has_attention else [1, 2]
        axes["micro_batch_size"] = [max(1, facts.batch_size // parts) for parts in sizes]
    else:
        can_have_workers = facts.data_kind == "map-style"
        axes["loader_workers"] = sorted({0, 1, facts.num_cores}) if can_have_workers else [0]
    names = list(axes)
    found = [dict(zip(names, row, strict=True)) for row in itertools.product(*axes.values())]
    for fields in found:
        fields["loader_persistent"] = fields.get("loader_workers", 0) > 0
    assert len(found) <= LARGEST_GRID, f"{len(found)} recipes"
    return found


def _optimizers(offered: tuple[str, ...]) -> list[str]:
    """Two of them, since three would make the grid too large."""
    best_last = [name for name in ("own", "foreach", "fused") if name in offered]
    return [best_last[0], *best_last[1:][-1:]]


def plain_fields(facts: ExperimentFacts) -> dict[str, Any]:
    """The recipe that equals a plain loop."""
    return {
        "precision": "fp32",
        "memory_format": "contiguous",
        "attention": "auto",
        "optimizer_implementation": "own",
        "num_threads": facts.num_threads,
        "micro_batch_size": facts.batch_size,
        "loader_workers": 0,
        "loader_persistent": False,
        "loader_pin_memory": False,
    }
