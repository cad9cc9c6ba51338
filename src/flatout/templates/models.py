"""Small models to begin with: one for each shape of data."""

from __future__ import annotations

from flatout.nouns.sketch import Sketch
from flatout.templates.piece import Piece

_NN = ("from torch import Tensor, nn",)

_IMAGES = Piece(
    imports=(*_NN, "from flatout.engine import data"),
    text='''
class Net(nn.Module):
    """Three convolutions that halve the image, and a decision on what they found."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        # Bytes until here: a fourth of what would have to be copied to a GPU.
        outputs: Tensor = self.layers(data.normalized(images))
        return outputs
''',
    words={"model": "Net(width, $outputs)", "width": "16"},
)

_TABLE = Piece(
    imports=("import torch", *_NN),
    text='''
class Net(nn.Module):
    """Columns of numbers and of categories, side by side, through two layers."""

    def __init__(
        self, width: int, outputs: int, num_numbers: int, categories: list[int]
    ) -> None:
        super().__init__()
        # Brings all columns to the same scale, whatever their units.
        self.scale = nn.BatchNorm1d(num_numbers) if num_numbers else None
        self.embeddings = nn.ModuleList(nn.Embedding(size, 8) for size in categories)
        self.layers = nn.Sequential(
            nn.Linear(num_numbers + 8 * len(categories), width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, outputs),
        )

    def forward(self, *columns: Tensor) -> Tensor:
        parts = [self.scale(columns[0])] if self.scale else []
        if len(self.embeddings):
            codes = columns[-1].unbind(1)
            pairs = zip(self.embeddings, codes, strict=True)
            parts += [look(code) for look, code in pairs]
        outputs: Tensor = self.layers(torch.cat(parts, dim=1))
        return outputs
''',
    words={"model": "Net(width, $outputs, $columns)", "width": "64"},
)

_TENSORS = Piece(
    imports=_NN,
    text='''
def build_model(width: int, outputs: int) -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear($num_inputs, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )
''',
    words={"model": "build_model(width, $outputs)", "width": "64"},
)

_READER = Piece(
    imports=_NN,
    text='''
class Net(nn.Module):
    """Reads the bytes of a text and decides by the mean of what it has read."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.reader = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.decision = nn.Linear(2 * width, outputs)

    def forward(self, texts: Tensor) -> Tensor:
        read, _ = self.reader(self.embedding(texts))
        is_text = (texts != 0).unsqueeze(2)
        mean = (read * is_text).sum(1) / is_text.sum(1).clamp(min=1)
        outputs: Tensor = self.decision(mean)
        return outputs
''',
    words={"model": "Net(width, $outputs)", "width": "32"},
)

_GPT = Piece(
    imports=("import torch", *_NN),
    text='''
class Net(nn.Module):
    """A small GPT over bytes."""

    def __init__(self, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, 256)

    def forward(self, seen: Tensor) -> Tensor:
        length = seen.shape[1]
        places = self.places(torch.arange(length, device=seen.device))
        # No byte may look at those that come after it.
        mask = nn.Transformer.generate_square_subsequent_mask(length, seen.device)
        read = self.layers(self.bytes(seen) + places, mask=mask, is_causal=True)
        scores: Tensor = self.scores(self.norm(read))
        return scores
''',
    words={"model": "Net(width, depth, context)", "width": "64"},
)


def model(sketch: Sketch) -> Piece:
    """The model that fits the data of a sketch; it fills in `$model` and `$width`."""
    if sketch.task == "language-model":
        return _GPT
    if sketch.data == "huggingface":
        return _READER
    if sketch.content in ("csv", "parquet"):
        return _TABLE
    return _IMAGES if sketch.content == "images" else _TENSORS
