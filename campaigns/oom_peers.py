"""What other libraries offer for out-of-memory errors, given the same errors in the same updates.

accelerate   `find_executable_batch_size` around the whole training, as in its documentation
lightning    `BatchSizeFinder` before the training
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oom_models
import torch
from oom_runs import FIRST, LAST, Made
from support.oom_injection import Injection, between
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Trained = tuple[dict[str, torch.Tensor], list[int]]


def peer_trials(tool: str, name: str, every: int, folder: Path) -> Iterator[Made]:
    """One training for each operation that fails."""
    train = {"accelerate": with_accelerate, "lightning": with_lightning}[tool]
    usual, sizes = train(name, Injection(), folder)
    counting = Injection()
    train(name, counting, folder)
    for at in range(1, counting.num_operations + 1, every):
        injection = Injection(at)
        try:
            weights, seen = train(name, injection, folder)
        except Exception as error:  # noqa: BLE001 - any exception is reported
            said = f"ended with {type(error).__name__}"
            yield Made(operation=f"{at}: {injection.failed}", problem=said, went_on=False)
            continue
        problem = None
        if seen != sizes:
            problem = f"restarted with batches of {max(seen)}"
        elif any(not torch.equal(weights[key], usual[key]) for key in usual):
            problem = "the weights differ"
        yield Made(operation=f"{at}: {injection.failed}", problem=problem, went_on=True)


def _parts(name: str, injection: Injection) -> tuple[nn.Module, Any, Callable[..., Any], Any]:
    """Model, optimizer, loss and data of one of the models, for a foreign loop."""
    torch.manual_seed(0)
    made = oom_models.experiment(name, lambda loss: between(loss, injection, FIRST, LAST))
    model = made.model()
    assert made.loss is not None
    return model, made.optimizer(model.parameters()), made.loss, TensorDataset(*made.train_data())


def _mean(value: Any) -> torch.Tensor:
    loss: torch.Tensor = value[0] / value[1] if isinstance(value, tuple) else value
    return loss


def with_accelerate(name: str, injection: Injection, folder: Path) -> Trained:
    """Two epochs with Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size, set_seed

    accelerator = Accelerator(cpu=True)

    @find_executable_batch_size(starting_batch_size=oom_models.BATCH_SIZE)
    def training(batch_size: int) -> Trained:
        set_seed(0)
        accelerator.free_memory()
        # A function that is called again has built nothing yet; the injection keeps counting.
        model, optimizer, loss, data = _parts(name, injection)
        loader: Any = DataLoader(data, batch_size=batch_size, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        sizes = []
        for _ in range(oom_models.EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(_mean(loss(model, batch)))
                optimizer.step()
                sizes.append(len(batch[0]))
        return {key: value.clone() for key, value in model.state_dict().items()}, sizes

    with injection:
        trained: Trained = training()
    return trained


def with_lightning(name: str, injection: Injection, folder: Path) -> Trained:
    """Two epochs with Lightning, after its search for a batch size."""
    import lightning
    from lightning.pytorch.callbacks import BatchSizeFinder

    made_model, optimizer, loss, data = _parts(name, Injection())
    sizes: list[int] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = made_model
            self.batch_size = oom_models.BATCH_SIZE // 2
            self.loss = loss

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            sizes.append(len(batch[0]))
            return _mean(self.loss(self.model, batch))

        def configure_optimizers(self) -> Any:
            return optimizer

        def train_dataloader(self) -> Any:
            return DataLoader(data, batch_size=self.batch_size, shuffle=True)

    class Begin(lightning.Callback):
        """The search is over: from here on the calls of the loss count."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            sizes.clear()
            module.loss = between(loss, injection, FIRST, LAST)

    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=oom_models.EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[
            BatchSizeFinder(steps_per_trial=1, init_val=oom_models.BATCH_SIZE // 2, max_trials=1),
            Begin(),
        ],
    )
    with injection:
        trainer.fit(Module())
    return {key: value.clone() for key, value in made_model.state_dict().items()}, sizes
