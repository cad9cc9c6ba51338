"""Programs that train one network with one framework, in its own environment: `flatout bench run
--frameworks`.

flatout is not imported: most of these environments do not hold it. A program is run with `-m`, with
this folder on its path. `training_program.py` says what comes in and what goes out.
"""
