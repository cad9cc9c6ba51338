"""Training a run: worker, trainer, loop, checkpoints, out-of-memory recovery.

Exactness
---------

What a resumed run needs to repeat: recipe (events), order and augmentation (functions of seed,
epoch and sample index, `engine/runtime/rng.py`), and everything else in the checkpoint:
weights, optimizer, schedule, scaler, moving averages, generators, position, early stopping.
Validation leaves the generators as it found them.

   sanity_check.py          one batch of the validation, before the first step; puts back what it
                            moves
   dry_run.py               a dry run: one step and that batch, in a folder that is removed
   engine/optim/schedule_rehearsal.py a schedule stepped on stand-ins for the optimizers: what it
                                      has left, and where it is
   run_length.py            how long a run is; refuses a length that its schedule has no rate for
   changed_experiment.py    resumes with another text of the experiment's file: what fits, what is
                            kept

A checkpoint records which text of the file it was made with, and for how many steps its schedule.
Where one of them is another now, schedule and settings of the optimizer are not loaded, but
rehearsed up to the run's position; so it does not matter when a run is killed on the way.

To add a measurement of training steps
--------------------------------------

1. What reads it is in `engine/runtime/`; `energy.py`, whose `mean_w` is written as `power_w`, is an
   example. It is silent where it cannot be read: None, never 0.
2. `metrics_log.py: _write_line` writes it into a field of `schema/run_lines.py: Progress`, None by
   default, for runs that lack it.
3. If people should see it: `cli/render/progress.py` shows it, `monitor/tensorboard.py: scalars`
   exports it. docs/runs.md describes the line.
4. `tests/cases/cli/fake_worker.py` writes it; test_tensorboard.py, if it is exported.

When memory runs out
--------------------

   updater.py               makes an update; rolls back one that was interrupted
     engine/runtime/oom.py    which exceptions say that memory ran out, and in which part
     rng_buffer_snapshot.py   generators and buffers as they were before the batch
     attribute_snapshot.py    the same for plain attributes of modules
   oom_recovery.py          the recipe that uses less memory, logged in events.jsonl before use
     tune/oom_policy.py       what can be done, and when more is tried again: no tensors
   trainer.py               goes back to the last checkpoint, if the weights may have been touched
   runs/supervisor.py       starts another process for one that could not continue
"""
