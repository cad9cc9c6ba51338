"""The workloads of `flatout bench run`, and their sizes: data for those who start them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.schema.experiment_spec import Value

# From so many cores on, a CPU takes the published networks within a few seconds a step.
_CORES_FOR_PUBLISHED = 16


class WorkloadSize(msgspec.Struct, frozen=True, kw_only=True):
    """A network and its batches.

    text: for people. parameters: of the network. steps: updates until time_to_steps is taken.
    batch_sizes, steps: by device type; where a batch is part of what is trained, both are equal.
    """

    text: str
    parameters: dict[str, Value]
    batch_sizes: dict[str, int]
    steps: dict[str, int]


class Epochs(msgspec.Struct, frozen=True, kw_only=True):
    """Passes over the data that a network is known for, in which people state speeds.

    text: for people. amount: samples or tokens, as the workload counts. source: of the amount.
    """

    text: str
    amount: float
    source: str


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A training that is measured.

    what: for people. tokens_per_sample: a parameter's name; None if samples are counted.
    fixed: recipe fields that belong to it. small: for CPUs with few cores.
    epochs: of the published network; None if its speed is not published by epochs.
    """

    name: str
    what: str
    published: WorkloadSize
    small: WorkloadSize
    fixed: dict[str, Value] = {}
    has_tokens: bool = False
    epochs: Epochs | None = None

    def size(self, device_types: Sequence[str], num_cores: int | None) -> WorkloadSize:
        """One network for all devices of a measurement, so that they can be compared."""
        has_few = (num_cores or 1) < _CORES_FOR_PUBLISHED
        return self.small if "cpu" in device_types and has_few else self.published


class MeasuredSize(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as one device trains it: text has the batch."""

    workload: str
    text: str
    parameters: dict[str, Value]
    batch_size: int
    num_steps: int


def measured_size(
    workload: Workload, device_type: str, device_types: Sequence[str], num_cores: int | None
) -> MeasuredSize:
    """What a device trains, if all of device_types are measured on this machine."""
    size = workload.size(device_types, num_cores)
    return MeasuredSize(
        workload=workload.name, text=size.text, parameters=size.parameters,
        batch_size=size.batch_sizes[device_type], num_steps=size.steps[device_type],
    )  # fmt: skip


def _size(
    text: str, cpu: tuple[int, int], cuda: tuple[int, int], **parameters: Value
) -> WorkloadSize:
    """cpu, cuda: batch size and steps."""
    (cpu_batch, cpu_steps), (cuda_batch, cuda_steps) = cpu, cuda
    return WorkloadSize(
        text=text,
        parameters=parameters,
        batch_sizes={"cpu": cpu_batch, "cuda": cuda_batch},
        steps={"cpu": cpu_steps, "cuda": cuda_steps},
    )


# As MNIST's example in pytorch/examples and the WSL2 benchmark of 2020 train it.
_MNIST = Epochs(
    text="14 epochs of MNIST", amount=14 * 60_000,
    source="LeCun, Cortes and Burges, The MNIST database of handwritten digits: 60,000 images",
)  # fmt: skip
_IMAGENET = Epochs(
    text="an epoch of ImageNet", amount=1_281_167,
    source="Russakovsky et al. (2015), https://arxiv.org/abs/1409.0575: 1,281,167 images",
)  # fmt: skip
_SQUAD = Epochs(
    text="an epoch of SQuAD 1.1", amount=87_599,
    source="https://huggingface.co/datasets/rajpurkar/squad: 87,599 questions, one sequence each",
)  # fmt: skip
_OPENWEBTEXT = Epochs(
    text="an epoch of OpenWebText", amount=9_035_582_198,
    source="karpathy/nanoGPT: data/openwebtext/readme.md: 9,035,582,198 tokens",
)  # fmt: skip
_MLP = _size("20 features, 128 hidden units", (64, 500), (64, 500))

WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload(
            name="mlp",
            what="a small network whose steps are so short that the loop's speed counts",
            published=_MLP,
            small=_MLP,
        ),
        Workload(
            name="mnist-large",
            what="MNIST with a network enlarged to keep a GPU busy",
            published=_size("128 channels", (512, 3), (512, 50), size="full"),
            small=_size("16 channels", (512, 10), (512, 50), size="tiny"),
            epochs=_MNIST,
        ),
        Workload(
            name="mnist-wsl2",
            what="the same as in the WSL2 benchmark of 2020: fp32, Dropout2d",
            published=_size("128 channels", (512, 3), (512, 50), channels=128),
            small=_size("16 channels", (512, 10), (512, 50), channels=16),
            fixed={"precision": "fp32"},
            epochs=_MNIST,
        ),
        Workload(
            name="resnet50",
            what="ResNet-50 v1.5 on 224 x 224 pixels",
            published=_size("224 x 224 pixels", (32, 3), (256, 20), size="full"),
            small=_size("224 x 224 pixels", (2, 3), (256, 20), size="full"),
            epochs=_IMAGENET,
        ),
        Workload(
            name="bert-large",
            what="BERT-Large fills in masked words",
            published=_size("24 layers, sequences of 384", (4, 3), (32, 20), depth=24, length=384),
            small=_size("4 of 24 layers, sequences of 128", (1, 3), (64, 20), depth=4, length=128),
            epochs=_SQUAD,
        ),
        Workload(
            name="gpt3-small",
            what="the smallest GPT-3",
            published=_size("12 layers, context 1024", (1, 3), (16, 20), depth=12, length=1024),
            small=_size("4 of 12 layers, context 128", (1, 3), (64, 20), depth=4, length=128),
            has_tokens=True,
            epochs=_OPENWEBTEXT,
        ),
        Workload(
            name="charlm",
            what="a small GPT that writes Shakespeare, character by character",
            published=_size("6 layers, context 256", (64, 3), (64, 50), size="full"),
            small=_size("4 layers of width 128, context 64", (32, 20), (32, 50), size="tiny"),
            has_tokens=True,
        ),
    )
}
