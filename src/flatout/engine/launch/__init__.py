"""Who starts the ranks of a training: `python -m flatout.engine.launch RUN_DIR --on local:4`.

One file for each launcher, with one function: `launch(job) -> int`. The contract between command
line, launcher and ranks is in `engine/ranks/__init__.py`. `ray_script_nodes.py` is not a launcher:
it starts a user's own script (`flatout launch`).

To add a launcher
-----------------

1. `engine/launch/<name>.py` with `launch(job: RankJob) -> int`; `local.py` is the shortest one. It
   restarts nothing. `RankJob` and `rank_variables` (`job.py`) are what each rank needs.
2. `schema/placement.py: LAUNCHERS`, or `LOCAL` if the ranks are on this machine: then it needs
   their number, and GPUs are counted before the start.
3. The help of `--on` in `cli/commands/train.py`; docs/ranks.md.
4. tests/unit/test_placement.py tries every name of `LAUNCHERS`; tests/integration/test_ranks.py
   trains with those that need nothing installed. If it starts processes or reads variables itself,
   tests/unit/test_house_borders.py needs a line with the reason (WORLD_EXCEPTIONS).
"""
