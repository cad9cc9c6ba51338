"""Trains the pictures with a tool's settings, pasted where their names exist; reports what it saw.

python run_settings.py TOOL SETTINGS.py [--samples]
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

COMPILING = re.compile(r"model\.compile\(|torch_compile=|TorchDynamoPlugin\(")

sys.path.insert(0, str(Path(__file__).parent))

from pictures import experiment  # noqa: E402


class WithLoss(nn.Module):
    """A model as the Hugging Face Trainer wants it: its forward pass returns the loss."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.loss(self.model, (images, labels))}


def main() -> None:
    tool, file = sys.argv[1:3]
    torch.manual_seed(0)
    described = experiment(is_read="--samples" in sys.argv)
    model = described.model()
    seen: dict[str, Any] = {"dtypes": set(), "strides": set(), "sizes": set()}

    def look(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        seen["dtypes"].add(str(output.dtype))
        seen["strides"].add(output.is_contiguous(memory_format=torch.channels_last))
        seen["sizes"].add(len(output))

    tensors = experiment().train_data()
    before = float(described.loss(model, tensors))
    names = names_for(tool, described, model)
    text = Path(file).read_text(encoding="utf-8")
    handle = model[2].register_forward_hook(look) if not COMPILING.search(text) else None
    text = text.replace("TrainingArguments(\n", 'TrainingArguments(\n    report_to="none",\n')
    exec(compile(text, file, "exec"), names)
    if handle is not None:
        handle.remove()
    optimizer = optimizer_of(tool, names)
    seen |= {
        "before": before,
        "after": float(described.loss(model.to("cpu"), tensors)),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fused": optimizer.param_groups[0]["fused"],
        "foreach": optimizer.param_groups[0]["foreach"],
        "updates": int(next(iter(optimizer.state.values()))["step"]),
    }
    print(json.dumps({name: sorted(v) if isinstance(v, set) else v for name, v in seen.items()}))


def names_for(tool: str, described: Any, model: nn.Module) -> dict[str, Any]:
    """The names that the settings of a tool expect."""
    data = described.train_data()
    names: dict[str, Any] = {"tensors": data, "dataset": data, "epochs": 2, "model": model}
    if tool == "lightning":
        names["module"] = module_of(described, model)
        return names
    names["optimizer"] = described.optimizer(model.parameters())
    names["loss_of"] = described.loss
    if tool == "hf":
        names["model"] = WithLoss(model, described.loss)
        if isinstance(data, list):
            names["dataset"] = [{"images": image, "labels": label} for image, label in data]
        else:
            names["tensors"] = dict(zip(("images", "labels"), data, strict=True))
    return names


def module_of(described: Any, model: nn.Module) -> Any:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = described.loss(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return described.optimizer(self.parameters())

    return Module()


def optimizer_of(tool: str, names: dict[str, Any]) -> Any:
    """The optimizer that made the updates."""
    if tool == "lightning":
        return names["trainer"].optimizers[0]
    return names["trainer"].optimizer if tool == "hf" else names["optimizer"]


if __name__ == "__main__":
    main()
