"""Sources for a person's own data: image folders, tables, text, and shards that were ingested.

from flatout.engine import data

train_data=lambda: data.image_folder("flowers/train", flip=True)
"""

from flatout.engine.data.columns import Columns
from flatout.engine.data.images import ImageFolder, image_folder, normalized
from flatout.engine.data.readers import image, rows, tensors, text_bytes
from flatout.engine.data.row_groups import ParquetRows, parquet_rows
from flatout.engine.data.shards import ShardedImages, Shards, shards
from flatout.engine.data.splits import split
from flatout.engine.data.tables import Table, csv, parquet
from flatout.engine.data.texts import Text, text
from flatout.engine.fitted import fitted

__all__ = [
    "Columns", "ImageFolder", "ParquetRows", "ShardedImages", "Shards", "Table", "Text", "csv",
    "fitted", "image", "image_folder", "normalized", "parquet", "parquet_rows", "rows", "shards",
    "split", "tensors", "text", "text_bytes",
]  # fmt: skip
