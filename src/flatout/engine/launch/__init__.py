"""Who starts the ranks of a training: `python -m flatout.engine.launch RUN_DIR --on local:4`.

One file for each launcher, with one function: `launch(job) -> int`. The contract is in
docs/architecture.md, "Ranks".
"""
