"""Runs for other tools, made from what the run has logged.

`runs/api.py` reads the run and calls them: `tensorboard.Writer` is given its lines, `plots.draw`
a run with its lines and results; only `plots` writes into the run's folder, to `plots/`.

Trackers are sent to while a run trains, by a process of its own (`runs/tracking.py`), which keeps
how far each has come and decides what is sent; `tracker.py: Tracker` is what an adapter has to do.

Samples of the machine come from `system/machine_sampler.py`: `top_view` shows them, with
`text_table`; `recorder` writes them into a run's folder, and `machine_use` sums them up.

To add a field of a sample
--------------------------

1. `schema/machine_sample.py`, with its unit in its name. Unknown is None, with a reason in
   `unread`.
2. `system/nvml_sampler.py`, `system/smi_samples.py` (nvidia-smi's name for it, or `_NEVER`) and
   `system/demo_samples.py`; or `system/host_sampler.py`.
3. `monitor/top_view.py`: a column, whose rank says what is left out first;
   `cli/render/top_text.py`: a column of the CSV.
4. `tests/support/fake_nvml.c`, tests/integration/test_gpu_sampler.py, tests/unit/test_samples.py.

To add an exporter
------------------

1. `monitor/<name>.py`: lines of `schema/run_lines.py` in, files out. Import an optional package by
   its name in the function that needs it, and raise `UsageError` `<package>-not-installed`
   (a section in docs/errors.md). Give it an extra in pyproject.toml.
2. `runs/api.py`: a verb that reads the run and calls it, like `export_tensorboard`; the command
   line calls nothing below.
3. `cli/commands/show.py`: an option; it goes into `tests/cases/cli/options.txt` and docs/runs.md.
   (`cli/commands/setup_export.py` is something else: environments.)
4. Tests like tests/unit/test_tensorboard.py and test_plots.py.

To add a tracker
----------------

1. `monitor/<name>_tracker.py`, like `mlflow_tracker.py`; an extra in pyproject.toml.
2. `schema/tracking.py: TrackerKind`; `runs/tracking.py: _tracker_for`; limits of its requests in
   `system/tracker_process.py`, where its default place is settled, too.
3. docs/trackers.md; a test that reads back what has arrived, as in
   tests/integration/test_trackers.py.
"""
