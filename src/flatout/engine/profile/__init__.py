"""A training step looked at from inside: what `flatout profile` runs.

`worker.py` is the process. It builds a session as a training would and makes steps three times:
as they are (their times), with the main thread's stack sampled (`lines.py`), and under
torch.profiler. `trace.py` takes the profiler's events; `kinds.py`, `split.py` and `tables.py` make
the report of them and know neither torch nor flatout's sessions; `report.py` puts it together.
`probes.py` runs the operators that a change concerns by themselves, with and without it.

`events.py` and all that it uses, `lines.py`, `trace.py`, `memory.py`, `step_plan.py` and
`script_steps.py` run in any interpreter that has torch and msgspec: a script's own.
"""
