"""Shards from a source, where pyarrow is, and Ray or Dask if they do the work.

Nothing here needs torch.
"""
