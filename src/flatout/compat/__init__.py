"""The right build of a framework for a machine: tables, each row with its source, and a solver.

Standard library only, because `scripts/quickstart` uses it before anything is installed.

   compat/*.toml --tables.py--> Tables --+
   Machine, --for CARD --target.py-> Target +--solve.py--> CompatAnswer --index_check.py--> index
   typed --build_requests.py--> BuildRequest ---+                 (fit.py, alternatives.py)

`solve` is a pure function of these three. `fit.py` gives the first reason against a build, in
words; candidates are ordered, and the first one without such a reason is chosen. The doctor, the
error about missing torch and `flatout setup` all use it, so they give the same answer.

To add a build
--------------

1. `compat/<framework>.toml`: its version, CUDA, Pythons and compute capabilities, with the source
   they were read from and the day. A new card: `compat/gpus.toml`.
2. tests/cases/setup: `by_hand.toml` for what must be chosen now; `make_by_rule.py` writes the rest.
3. docs/setup.md, if the newest version changes.
"""
