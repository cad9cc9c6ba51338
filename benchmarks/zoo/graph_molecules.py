"""A graph net that predicts a number of each molecule: messages along bonds by index_add."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout

ATOMS, BONDS, KINDS = 24, 52, 9

Molecules = dict[str, Tensor]


class MessagePassing(nn.Module):
    """Three rounds in which each atom hears from those it is bound to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(KINDS, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, molecules: Molecules) -> Tensor:
        """Atoms (molecules, ATOMS) and bonds (molecules, BONDS, 2) to numbers (molecules, 1)."""
        count = len(molecules["atoms"])
        # All molecules of the batch are one graph without bonds between them.
        first = (torch.arange(count, device=molecules["atoms"].device) * ATOMS).view(-1, 1)
        source = (molecules["bonds"][:, :, 0] + first).flatten()
        target = (molecules["bonds"][:, :, 1] + first).flatten()
        hidden = self.atoms(molecules["atoms"].flatten())
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([hidden[source], hidden[target]], dim=1)).relu()
            heard = torch.zeros_like(hidden).index_add(0, target, sent.to(hidden.dtype))
            hidden = hidden + update(torch.cat([hidden, heard], dim=1)).relu()
        return self.head(hidden.view(count, ATOMS, -1).mean(dim=1))


def molecules() -> Molecules:
    """Random bonds between random atoms; the number is how many bonds join unlike atoms."""
    dice = torch.Generator().manual_seed(1)
    atoms = torch.randint(KINDS, (4_096, ATOMS), generator=dice)
    bonds = torch.randint(ATOMS, (4_096, BONDS, 2), generator=dice)
    ends = atoms.gather(1, bonds.flatten(1)).view(bonds.shape)
    energy = (ends[:, :, 0] != ends[:, :, 1]).float().mean(dim=1, keepdim=True)
    return {"atoms": atoms, "bonds": bonds, "energy": energy}


def loss(model: nn.Module, batch: Molecules) -> Tensor:
    return mse_loss(model(batch), batch["energy"])


def experiment(batch_size: int = 64, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: MessagePassing(width=64),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=loss,
        train_data=molecules,
        batch_size=batch_size,
        steps=steps,
        unit="molecules",
    )
