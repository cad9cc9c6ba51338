"""Runs, from outside the engine: start, supervise, list, compare, predict, ingest.

The boundary
------------

- command line: makes the run's folder with `run.json` (`schema/run.py: RunHeader`), starts the
  worker, reads lines
- worker: `python -m flatout.engine.training.worker RUN_DIR [--attached] [--change JSON]`
- `--attached`: stdin is a pipe from the command line; its end means that the command line has
  exited, so the worker writes a checkpoint and stops
- `--change`: on resume, `{"fixed": {field: value}, "epochs": N, "steps": N, "file": {...}}`;
  becomes RecipeSet, Extended and FileChanged events. `is_after_kill`: the kernel killed the
  previous process when memory ran out
- exit code: 0 finished or stopped in good order; else that of the error, reported in a `Failed`
  event; 3 a bug in flatout, traceback in `worker.log`
- stop: the file `stop` appears; the step ends, a checkpoint is written, `Stopped` is appended

Predictions and evaluations have a boundary of their own, and write nothing into the run:

- command line: starts `python -m flatout.engine.predict.worker`, and asks by a line of JSON on
  its stdin (`schema/predict_protocol.py: PredictJob`)
- answers: JSON lines on its stdout (`Reply`), read as they come; what the experiment prints
  goes to stderr and is kept where it fails
- end of stdin: the command line has exited: the process ends

A search measures some of its trials in processes of their own, and has a third boundary:

- worker: starts `python -m flatout.engine.tuner.trial_process RUN_DIR`, with a `TrialRequest` as
  JSON on its stdin
- trial: builds the experiment from the run's folder, measures, and writes a `TrialReply` as JSON
  on its stdout; what the experiment prints goes to stderr, so into `worker.log`
- no answer: the candidate has lost (`trial-died`); the search continues

The worker runs in its own process group, so that Ctrl-C in a terminal reaches only the command
line.

A run's folder
--------------

See `system/store/run_folder.py` for the layout and `schema/run_lines.py` for the lines.
`events.jsonl` is history and never cut. `metrics.jsonl` is cut back to the checkpoint on
resume. A checkpoint is a tensor file and, written after it, a JSON file with the tensor file's
checksum: without a valid one it does not count. Status is never stored: a run whose `lock` is held
is running, else the last event decides.
"""
