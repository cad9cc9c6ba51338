"""One contestant of emitted.py: trains for some seconds, prints milliseconds per update.

python emitted_child.py MODEL WAY FOLDER SECONDS
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset, TensorDataset

from flatout.engine.experiment import Experiment

# The first updates prepare what follows, and are not timed: this share of the seconds.
_WARM_UP = 0.3
# Each tool as its documentation shows it.
PLAIN = {
    "lightning": """
import lightning
from torch.utils.data import DataLoader
loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=epochs, gradient_clip_val=clip_norm, accelerator=device,
)
trainer.fit(module, loader)
""",
    "hf": """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    num_train_epochs=epochs, per_device_train_batch_size=batch_size, use_cpu=device == "cpu",
    max_grad_norm=clip_norm or 0.0, remove_unused_columns=False,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=dataset, optimizers=(optimizer, None),
    data_collator=collate_named,
)
trainer.train()
""",
    "accelerate": """
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator(cpu=device == "cpu")
loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(epochs):
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, batch))
        if clip_norm:
            accelerator.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
""",
}
# What is written while training is off for all.
QUIET = {
    "lightning.Trainer(\n": "logger=False, enable_checkpointing=False, enable_progress_bar=False, "
    "enable_model_summary=False,",
    "TrainingArguments(\n": 'report_to="none", save_strategy="no", disable_tqdm=True,',
}


class Enough(Exception):
    """The seconds are over."""


def described(name: str) -> Experiment:
    """The built-in, without what no tool gets: schedule and averaged weights."""
    from never_slower import MODELS
    from never_slower_experiment import experiment

    whole = experiment(name, MODELS[name], steps=10**9)
    return dataclasses.replace(whole, steps=None, epochs=10**6, schedule=None, ema=None)


def main() -> None:
    """Trains, and prints the time of an update."""
    name, way, folder, seconds = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    torch.manual_seed(0)
    fields = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    if way == "recipe":
        ms = of_recipe(name, fields, seconds)
    else:
        tool, kind = way.split()
        text = PLAIN[tool]
        if kind == "settings":
            text = (folder / f"{tool}.py").read_text(encoding="utf-8")
        device = "cpu" if fields["device"] == "cpu" else "gpu"
        ms = of_tool(text, names_for(tool, described(name), device), seconds)
    print(json.dumps({"ms": ms}))


def of_recipe(name: str, fields: dict[str, Any], seconds: float) -> float:
    """Milliseconds per update of flatout's loop."""
    from no_regret_loops import Recipe

    from flatout.engine.session.session import build

    loop = Recipe(build(described(name), 0, fields["device"]), fields)
    end_s = time.perf_counter() + seconds
    update_s = loop.timed(3)
    # In one go, as the tools train.
    update_s = loop.timed(max(3, round(_WARM_UP * seconds / update_s)))
    update_s = loop.timed(max(3, round((end_s - time.perf_counter()) / update_s)))
    loop.close()
    return 1000 * update_s


def of_tool(text: str, names: dict[str, Any], seconds: float) -> float:
    """Milliseconds per update of a tool, from its optimizer's steps."""
    for call, arguments in QUIET.items():
        text = text.replace(call, f"{call}    {arguments}\n")
    begin_s = time.perf_counter()
    steps_s: list[float] = []

    def stepped(*_: Any) -> None:
        nonlocal begin_s
        now_s = time.perf_counter()
        if not steps_s:
            # Starting, and compiling, have taken a while.
            begin_s = now_s
        if now_s - begin_s > seconds:
            raise Enough
        if now_s - begin_s > _WARM_UP * seconds:
            if names["device"] != "cpu":
                torch.cuda.synchronize()
            steps_s.append(time.perf_counter())
        elif not steps_s:
            steps_s.append(now_s)

    register_optimizer_step_post_hook(stepped)
    try:
        exec(compile(text, "settings.py", "exec"), names)
    except Enough:
        pass
    timed_s = steps_s[1:]
    return 1000 * (timed_s[-1] - timed_s[0]) / (len(timed_s) - 1)


class WithLoss(nn.Module):
    """A model as the Hugging Face Trainer wants it: its forward pass returns the loss."""

    def __init__(self, experiment: Experiment, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss: Any = experiment.loss

    def forward(
        self, first: torch.Tensor, second: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The loss of a batch of inputs and targets, or of one tensor for both."""
        return {"loss": self.loss(self.model, first if second is None else (first, second))}


class Rows(Dataset[torch.Tensor]):
    """A tensor whose rows are samples, as one has it for a loader."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor[index]


def names_for(tool: str, experiment: Experiment, device: str) -> dict[str, Any]:
    """The names that settings expect, and those of the plain ways."""
    data: Any = experiment.train_data()
    if isinstance(data, TensorDataset):
        data = data.tensors
    model = experiment.model()
    is_tensors = isinstance(data, list | tuple) and isinstance(data[0], torch.Tensor)
    is_tensor = isinstance(data, torch.Tensor)
    dataset = TensorDataset(*data) if is_tensors else Rows(data) if is_tensor else data
    names: dict[str, Any] = {
        "tensors": data, "dataset": dataset, "epochs": 10**6, "steps": 10**9, "model": model,
        "loss_of": experiment.loss, "batch_size": experiment.batch_size, "device": device,
        "clip_norm": experiment.clip_norm,
    }  # fmt: skip
    if tool == "lightning":
        return {**names, "module": module_of(experiment, model)}
    names["optimizer"] = optimizer_of(experiment, model)
    if tool == "hf":
        names |= {"model": WithLoss(experiment, model), "collate_named": collate_named}
        if is_tensors or is_tensor:
            parts = (data,) if is_tensor else data
            names["tensors"] = dict(zip(("first", "second"), parts, strict=False))
    return names


def optimizer_of(experiment: Experiment, model: nn.Module) -> Any:
    """The experiment's optimizer for the weights of a model."""
    named = experiment.named_parameters
    return experiment.optimizer(model.named_parameters() if named else model.parameters())


def collate_named(samples: list[Any]) -> dict[str, torch.Tensor]:
    """A batch of pairs, or of single tensors, with the names of WithLoss's arguments."""
    batch = torch.utils.data.default_collate(samples)
    parts = (batch,) if isinstance(batch, torch.Tensor) else batch
    return dict(zip(("first", "second"), parts, strict=False))


def module_of(experiment: Experiment, model: nn.Module) -> Any:
    """The experiment as a LightningModule."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> Any:
            return experiment.loss(self.model, batch)  # type: ignore[misc]

        def configure_optimizers(self) -> Any:
            return optimizer_of(experiment, self.model)

    return Module()


if __name__ == "__main__":
    main()
