"""The search for a recipe, carried out: trials, timing, effect checks, the baseline.

`tune` decides, the engine carries out:

   driver.py                gets from tune/search.py what to measure next, logs each trial in
                            events.jsonl
     trials.py                carries a trial out: builds, proves the effect, measures, has it
                              judged
       candidate_builder.py, baseline_loop.py, ab_timing.py  the plain loop and flatout's, in turns
       effect_checks.py, op_trace.py                    was the setting seen at work?
       gate/                                     does the step still compute the same?
     trial_process.py         the same in fresh processes

- `tune/search.py: next_move(problem, history)` is a function: all results so far in, the next
  trial or the decision out. So a search is tested with made-up speeds, without torch.
- Contestants are built from the experiment's factories with one seed. The data is built once
  and shared by all of them, and by the gate.
- Where the plain loop does not fit into the memory, `engine/tuner/trials.py` looks for the
  first that does among those of `tune/memory.py`. `engine/runtime/gpu_memory.py` leaves other
  programs theirs.
- The gate judges every candidate that was faster, as the whole recipe it would become part of.
  `tune/gate.py` says which questions the changed fields concern and how far results may differ;
  `engine/gate/` runs the steps. What cannot be judged is refused.
- `engine/tuner/trial_process.py` starts processes, and so does `engine/runtime/child_query.py`,
  for questions that could take their process along (a DataLoader's workers aside). A pool of
  threads is one for the whole process, and what one contestant has warmed another finds warm;
  so threads are tried, and the winner confirmed, where nothing has run before. It must be the
  engine that starts them, since the search runs in the worker and the command line may be gone.
- What is compiled (`tune/compiled_trials.py`, `engine/step/compiled_loss.py`) comes last, and
  is carried out by `engine/tuner/compile_trial_process.py`: candidate, incumbent and gate in
  one fresh process with a deadline. The process that trains compiles when it trains, and never
  before.
- What was found is kept by `system/store/recipe_cache.py` under a digest of model, shapes,
  device and versions (`engine/tuner/cache_key.py`), with the profile it came from: so what a
  longer run may compile is known without another profile, and tried on top
  (`tune/compiled_trials.py: left_to_compile`).
- For `--emit code`, the engine writes an experiment's outline (`schema/code_outline.py`) before
  the search; `tune/emit/code.py` writes the program from it and the recipe, in the command
  line's process.
"""
