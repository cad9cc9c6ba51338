"""Batches: from a data function's result to tensors on the device.

`engine/data` holds the sources for your own data, and the inputs of predictions in the same form
(`predict_inputs.py`). A CSV file is read by pyarrow or by `plain_csv.py`; `values.py` is the common
interface to the columns of both. `engine/feed/select_feed.py` decides which feed reads what a
data function returned: tensors are sliced, everything else goes through a DataLoader, or once
through it into a cache (`cached_feed.py`), if `cache_check.py` finds that its samples are always
the same and fit into memory. A worker's error comes back as a value (`engine/feed/collate.py:
WorkerFailure`), because torch would turn it into another exception.
"""
