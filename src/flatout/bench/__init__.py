"""How fast this machine is against its own limits, and against others: `flatout bench`.

`api.py` is the entry point for the limits, `run.py` for workloads, `compare.py` for comparisons of
files. What is measured is in `schema/bench.py`; torch is used in `engine/bench`, by child
processes.
"""
