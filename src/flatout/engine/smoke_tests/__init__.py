"""Smoke tests: programs that train a few steps with one framework, in its own environment.

flatout is not imported: most of these environments do not hold it. A problem comes as JSON on
stdin; the losses before the first step and after each go out as JSON, as the last line of stdout.
"""
