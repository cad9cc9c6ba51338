"""Measures what a device can do at most, and what it does: `flatout bench`.

`limits_worker.py` is the process; the quantities are in `products.py` (matrix products),
`memory_roofs.py` (memory, copies, launches) and `loader_start.py`. `blocks.py` measures them: each
is called so often that a block takes long enough, and their blocks take turns. `all_reduce.py` is a
process per rank.

`run_worker.py` is the process of `flatout bench run`: it trains a workload (`workloads.py`) as the
plain loop or under a recipe (`run_recipe.py`), with the tuner's loops.
"""
