"""Sources for your own data: image folders, tables, text, and ingested shards.

from flatout.engine import data

train_data=lambda: data.image_folder("flowers/train", flip=True)

To add a source
---------------

1. A function in a file named after its data (`images.py`, `tables.py`, `texts.py`), which returns
   tensors, a `Dataset` or an `IterableDataset`: `engine/feed/data_kind.py` tells which, by the
   methods it has. `predict_inputs.py` reads an input of `flatout predict` the same way. If it opens
   files itself, tests/unit/test_house_borders.py needs a line with the reason (WORLD_EXCEPTIONS).
2. Import it here, and list it in `__all__`; docs/data.md; tests/integration/test_data_*.py.
3. Data that `flatout ingest` should turn into shards: see `engine/ingest/__init__.py`.
"""

from flatout.engine.data.columns import Columns
from flatout.engine.data.fitted import fitted
from flatout.engine.data.images import ImageFolder, image_folder, normalized
from flatout.engine.data.predict_inputs import image, rows, tensors, text_bytes
from flatout.engine.data.row_groups import ParquetRows, parquet_rows
from flatout.engine.data.shards import ShardedImages, Shards, shards
from flatout.engine.data.splits import split
from flatout.engine.data.tables import Table, csv, parquet
from flatout.engine.data.texts import Text, text

__all__ = [
    "Columns", "ImageFolder", "ParquetRows", "ShardedImages", "Shards", "Table", "Text", "csv",
    "fitted", "image", "image_folder", "normalized", "parquet", "parquet_rows", "rows", "shards",
    "split", "tensors", "text", "text_bytes",
]  # fmt: skip
