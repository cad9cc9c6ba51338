"""Training steps with torch."""

import json
import sys
from typing import Any

import torch
from torch.nn import functional


def losses(problem: dict[str, Any], device: str) -> list[float]:
    """The losses before the first step and after each, computed on a device."""

    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(problem[name], dtype=torch.float32, device=device)

    images_nchw = tensor("images").unsqueeze(1)
    labels = torch.tensor(problem["labels"], device=device)
    kernel_oihw = tensor("kernel").permute(2, 0, 1).unsqueeze(1).contiguous().requires_grad_()
    matrix = tensor("matrix").requires_grad_()
    optimizer = torch.optim.SGD([kernel_oihw, matrix], lr=problem["lr"])
    all_losses = []
    for _ in range(problem["steps"] + 1):
        maps_nhwc = torch.tanh(functional.conv2d(images_nchw, kernel_oihw)).permute(0, 2, 3, 1)
        loss = functional.cross_entropy(maps_nhwc.flatten(1) @ matrix, labels)
        all_losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return all_losses


def main() -> None:
    """Reads the problem, prints what came out."""
    problem = json.load(sys.stdin)
    report: dict[str, Any] = {"version": torch.__version__, "cpu": losses(problem, "cpu")}
    if problem["device"] == "gpu":
        if not torch.cuda.is_available():
            torch.cuda.init()  # Says why not.
            sys.exit("torch.cuda.is_available() is False")
        report |= {"device_name": torch.cuda.get_device_name(0), "gpu": losses(problem, "cuda:0")}
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
