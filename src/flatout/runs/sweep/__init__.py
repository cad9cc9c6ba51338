"""Sweeps: many trainings of one experiment, whose parameters Optuna chooses.

A trial is a run like any other, started and followed as `flatout train` does (`runs/supervisor.py`)
and named after its sweep. Optuna only proposes: its study is in memory, and is built again from the
lines of `trials.jsonl`. So a kill at any moment, within a write too, leaves either a whole line or
none, and what follows is the same:

- killed before the line with a trial's parameters: they are chosen again, and are the same, since
  the sampler's seed is computed from the sweep's seed and the number of the trial
- killed before the trial's run was created: it is created
- killed while it trained: the run is resumed, and its validations are reported once more
- killed before the line with its end: the end is read from the run

`space.py` parses ranges, `proposals.py` is the only file that uses Optuna, `journal.py` writes,
`carry_out.py` has the loop, `result.py` reads.
"""
