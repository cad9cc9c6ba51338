"""Which recipe is the fastest correct one: candidates, the search, and what was found before.

Pure: no torch, no clock, no files. `engine/tuner.py` carries out what is decided here.
"""
