"""The Trainer of Lightning: regression on random numbers."""

import argparse
import tempfile

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))

    def training_step(self, batch, batch_index):
        """The loss of a batch."""
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        """The optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

lightning.seed_everything(0)
inputs = torch.randn(8192, 128)
loader = DataLoader(TensorDataset(inputs, inputs[:, :8].sum(1, keepdim=True)), batch_size=64)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=options.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Regression(), loader)
print(f"final loss {float(trainer.callback_metrics['loss']):.9f}")
